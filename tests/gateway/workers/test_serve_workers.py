"""A gateway of several real processes: routed by cache on every worker, and no process that dies takes the others along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.workers.fleet import LOOPBACK, ROOT, Answer, Fleet, until

pytestmark = [pytest.mark.xdist_group("workers"), pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two replicas and two workers, for tests that leave them running."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        until(fleet.is_live, "everything to be live")
        yield fleet
    finally:
        fleet.close()


def prompt(name: str) -> str:
    """Some blocks of text that begin like no other."""
    return f"{name} " + "hello the user " * 10


class Traffic:
    """Requests one after another, until stopped."""

    def __init__(self, fleet: Fleet, text: str) -> None:
        self.answers: list[Answer] = []
        self.errors: list[Exception] = []
        self._fleet = fleet
        self._text = text
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.answers.append(self._fleet.chat(self._text))
            except Exception as error:
                self.errors.append(error)

    def stop(self) -> None:
        """Let the last one finish."""
        self._stop.set()
        self._thread.join()


def test_both_workers_route_by_what_replicas_announce(fleet: Fleet) -> None:
    """Beyond its guess's life, a worker that never saw a prompt predicts what the replica really has."""
    first = fleet.chat(prompt("both"))
    assert first.cached == 0
    time.sleep(0.6)  # the guess of the worker that placed it ends
    answers = fleet.by_worker(prompt("both"))
    assert {answer.replica for answer in answers.values()} == {first.replica}
    assert all(answer.predicted == answer.cached > 0 for answer in answers.values()), answers


def test_one_control_plane_adds_the_workers_up(fleet: Fleet) -> None:
    before = fleet.metrics()
    answers = [fleet.chat(prompt("sum")) for _ in range(8)]
    after = fleet.metrics()
    name = 'trunkline_requests_total{route="chat",status="2xx"}'
    assert after[name] - before.get(name, 0.0) == 8
    assert after['trunkline_process_up{process="index"}'] == 1
    ids = [row["request_id"] for row in fleet.get("/receipts?limit=8")["receipts"]]
    assert {each.partition("-")[0] for each in ids} == {answer.worker for answer in answers}
    stats = fleet.get("/index/stats")
    assert stats["blocks"] == sum(row["blocks"] for row in stats["by_holder"]) > 0
    assert sum(rank["in_flight"] for row in fleet.get("/replicas")["replicas"] for rank in row["ranks"]) == 0


def test_blocks_are_shown_by_the_process_that_has_them_and_tokens_to_the_administrator_alone(fleet: Fleet) -> None:
    """FC-58."""
    fleet.chat(prompt("shown"))
    time.sleep(0.2)
    assert '"kind":"block"' in fleet.text("/index/dump?limit=5")
    assert fleet.change("GET", "/index/dump?tokens=1") == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        fleet.text("/index/dump?tokens=1")


def test_a_killed_index_process_costs_no_request_and_its_view_is_built_again(fleet: Fleet) -> None:
    fleet.chat(prompt("killed"))
    time.sleep(0.6)
    assert all(answer.predicted > 0 for answer in fleet.by_worker(prompt("killed")).values())
    before = fleet.processes()["index"]
    traffic = Traffic(fleet, prompt("killed"))
    try:
        until(lambda: len(traffic.answers) > 5, "traffic")
        os.kill(before["pid"], signal.SIGKILL)
        at = len(traffic.answers)
        until(lambda: fleet.processes()["index"]["restarts"] > before["restarts"], "the index process to be started again")
        until(fleet.is_live, "the views to be built again")
    finally:
        traffic.stop()
    assert traffic.errors == []
    during = traffic.answers[at:]
    assert len(during) > 20
    assert all(answer.status == 200 and answer.predicted > 0 for answer in during), "the last view was not used meanwhile"
    fleet.chat(prompt("anew"))
    time.sleep(0.6)
    answers = fleet.by_worker(prompt("anew"))
    assert all(answer.predicted == answer.cached > 0 for answer in answers.values()), answers
    assert "Traceback" not in fleet.log.read_text()


def test_a_killed_worker_is_started_again_and_the_others_go_on(fleet: Fleet) -> None:
    fleet.chat(prompt("worker"))
    counted = fleet.metrics()['trunkline_requests_total{route="chat",status="2xx"}']
    before = fleet.processes()
    traffic = Traffic(fleet, prompt("worker"))
    try:
        os.kill(before["worker-0"]["pid"], signal.SIGKILL)
        until(
            lambda: fleet.processes()["worker-0"]["restarts"] > before["worker-0"]["restarts"], "the worker to be started again"
        )
        until(fleet.is_live, "everything to be live")
    finally:
        traffic.stop()
    refused = [error for error in traffic.errors if isinstance(error, urllib.error.HTTPError)]
    assert not refused, "it took requests before it knew of a replica that is up"
    assert fleet.processes()["worker-1"] == before["worker-1"]
    time.sleep(0.6)
    assert all(answer.predicted > 0 for answer in fleet.by_worker(prompt("worker")).values())
    assert fleet.metrics()['trunkline_requests_total{route="chat",status="2xx"}'] > counted, "a sum fell"


def test_replicas_come_and_go_in_all_processes(fleet: Fleet) -> None:
    """Also in one that is started later."""
    third = fleet.new_replica("third")
    fleet.replicas.append(third)
    entry = {"url": third.url, "name": "third"}
    assert fleet.change("POST", "/replicas", entry) == 201
    assert fleet.change("POST", "/replicas", entry) == 400
    until(lambda: fleet.is_live(3), "the third replica's view to be live")
    before = fleet.processes()["worker-1"]
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: fleet.processes()["worker-1"]["restarts"] > before["restarts"], "the worker to be started again")
    until(lambda: fleet.is_live(3), "the third replica's view to be live")
    assert fleet.change("DELETE", "/replicas/third") == 204
    assert fleet.change("DELETE", "/replicas/third") == 404
    until(fleet.is_live, "the third replica to be gone")


def test_a_signal_lets_open_requests_finish(tmp_path: Path) -> None:
    """FC-57."""
    fleet = Fleet(tmp_path, replicas=1, step_s=0.05)
    try:
        until(lambda: fleet.is_live(1), "everything to be live")
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(fleet.chat(prompt("open"), max_tokens=20)))
        thread.start()
        until(lambda: fleet.get("/replicas")["replicas"][0]["ranks"][0]["in_flight"] == 1, "the request to be placed")
        children = [row["pid"] for row in fleet.processes().values()]
        fleet.terminate()
        assert fleet.wait() == 0
        thread.join()
        assert [answer.status for answer in answers] == [200]
        assert not any(is_running(pid) for pid in children)
    finally:
        fleet.close()


def test_a_signal_while_the_index_compiles_is_obeyed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FC-57: and no compiler is left behind."""
    cache = tmp_path / "cold"
    monkeypatch.setenv("TRUNKLINE_CACHE", str(cache))
    fleet = Fleet(tmp_path, replicas=1)
    try:
        until(lambda: any(cache.glob("jit/*/lock")), "the compiler to work")
        compilers = [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if is_compiler(folder, cache)]
        assert len(compilers) == 1
        fleet.terminate()
        assert fleet.wait(within_s=5) == 0
        assert not is_running(compilers[0])
    finally:
        fleet.close()


def is_compiler(process: Path, cache: Path) -> bool:
    """Whether a folder of /proc is of one that fills this cache."""
    try:
        if b"radix.core.bake" not in (process / "cmdline").read_bytes():
            return False
        return str(cache).encode() in (process / "environ").read_bytes()
    except OSError:
        return False  # it has ended


def test_processes_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, replicas=1)
    try:
        until(lambda: fleet.is_live(1), "everything to be live")
        children = [row["pid"] for row in fleet.processes().values()]
        os.kill(fleet.pid, signal.SIGKILL)
        fleet.wait()
        until(lambda: not any(is_running(pid) for pid in children), "all processes to end")
    finally:
        fleet.close()


def is_running(pid: int) -> bool:
    """Whether there is such a process, zombies not counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_port_that_is_taken_is_named(fleet: Fleet) -> None:
    """Not even another gateway with workers gets the port: the two would share its connections."""
    words = ["--workers", "2", "--replica", "http://127.0.0.1:1", *LOOPBACK]
    words[words.index("--port") + 1] = str(fleet.data_port)
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", *words], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 2
    assert f"listen.host, listen.port: cannot listen on '127.0.0.1', {fleet.data_port}" in done.stderr
