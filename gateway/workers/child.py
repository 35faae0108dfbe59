"""`python -m gateway.workers.child`: one process of a gateway that is made of several; started by `supervise`, not by hand.

Its job comes as one line of JSON on stdin, which then stays open: when it ends, the supervisor is gone, and so do we go. One line
of JSON on stdout says where it listens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from typing import Literal

import msgspec
import uvloop

from gateway.compiled import compile_code
from gateway.config import Settings
from gateway.errors import ConfigError
from gateway.serve import Gateway, log_to_stderr, serve_until_signal
from radix.errors import RadixError

log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True):
    """What a process is to do. door: number of its file handle of `wire.new_door`; handles: others it is given."""

    role: Literal["index", "worker"]
    name: str
    settings: Settings
    door: int
    handles: tuple[int, ...] = ()


class Ready(msgspec.Struct, frozen=True):
    """Where a process listens; data_port is 0 for the index process."""

    data_port: int
    control_port: int


def main() -> int:
    """Do the job on stdin; returns the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a handler: files are read later than that anyway
    line = sys.stdin.buffer.readline()
    job = msgspec.json.decode(line, type=Job)
    log_to_stderr(job.settings, job.name)
    threading.Thread(target=_end_with_supervisor, name="supervisor", daemon=True).start()
    door = socket.socket(fileno=job.door)
    door.setblocking(False)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_index(job, door) if job.role == "index" else _worker(job, door))
    except (ConfigError, RadixError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


async def _index(job: Job, door: socket.socket) -> int:
    from radix.core.jit import default_cache, is_whole

    if not is_whole(default_cache()):  # by a process of its own: some 20 s of computing, in which this one could not be stopped
        log.info("compiling the index: takes some 20 s once, `python -m radix.core.bake` does it beforehand")
        if not await _compiled():
            return 0
    from gateway.workers.index_process import IndexProcess

    return await serve_until_signal(IndexProcess(job.settings, door).gateway, _announce, serves=False)


async def _compiled() -> bool:
    """Compile; False when a signal came first, and then no compiler is left behind (FC-57). Raises RadixError."""
    loop, compiling = asyncio.get_running_loop(), asyncio.ensure_future(compile_code())
    loop.add_signal_handler(signal.SIGTERM, compiling.cancel)
    try:
        await compiling
    except asyncio.CancelledError:
        return False
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    return True


async def _worker(job: Job, door: socket.socket) -> int:
    from gateway.workers.link import SharedKnowledge

    return await serve_until_signal(Gateway(job.settings, SharedKnowledge(door)), _announce, share_port=True)


def _announce(data_port: int, control_port: int) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(Ready(data_port, control_port)) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_supervisor() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
