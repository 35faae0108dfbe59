"""Single checks: what they take for wrong, and what they do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway.choose.types import Decision, Receipt
from gateway.config import ReplicaSettings
from gateway.doctor import checks, stream_checks
from gateway.doctor.gather import answered
from gateway.doctor.probe import parity
from gateway.doctor.types import Answered, Card, EngineFacts, Finding, House, Parity, Patient, Probed, RankFacts, Severity
from gateway.health import Facts

RANK = RankFacts(
    0, followed=True, connected=True, freshness="live", block_tokens=16, events="tcp://h:1", replay="tcp://h:2", reachable=True
)
HOUSE = House("cost", follows_events=True, tokenizer="ready", tokenizer_name="/models/m", evicted=0, index_mib=1024)


def patient(**changes: Any) -> Patient:
    usual: dict[str, Any] = {
        "name": "r",
        "url": "http://h:8000",
        "settings": ReplicaSettings(url="http://h:8000"),
        "healthy": True,
        "last_error": None,
        "models": ("m",),
        "engine": EngineFacts(kind="vllm", block_tokens=16, caching=True, skew_s=0.2, skew_error_s=0.5),
        "ranks": (RANK,),
        "answered": Answered(),
        "probed": Probed(200, "", 50, 48, True, 1),
        "parity": (Parity(False, 9, 9, None), Parity(True, 20, 20, None)),
    }
    return Patient(**(usual | changes))


def one(found: Iterable[Finding]) -> Finding:
    (finding,) = list(found)
    return finding


def ranked(**changes: Any) -> Patient:
    return patient(ranks=(replace(RANK, **changes),))


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    well = patient()
    found = [*checks.reachable(well), *checks.dialect(well), *checks.block_size(well), *checks.cached_tokens(well)]
    found += [*checks.tokens(well, HOUSE), *checks.clock(well), *checks.trust(well), *stream_checks.streams(well, HOUSE)]
    assert [*found, *stream_checks.fleet([well], HOUSE)] == []


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("ClientConnectorError: refused", "correct `url`"),
        ("ValueError: /v1/models answered 401", "set `api_key`"),
        ("TimeoutError: ", "health.timeout_s"),
    ],
)
def test_an_engine_that_does_not_answer(error: str, fix: str) -> None:
    finding = one(checks.reachable(patient(healthy=False, last_error=error)))
    assert (finding.severity, finding.check, finding.evidence) == (Severity.ERROR, "reachable", error)
    assert fix in finding.fix


def test_prompts_that_are_not_found_again_mean_no_prefix_caching() -> None:
    finding = one(checks.cached_tokens(patient(probed=Probed(200, "", 50, 0, True, 1))))
    assert (finding.check, finding.severity) == ("prefix_caching", Severity.ERROR)
    assert "0 of 48 tokens" in finding.evidence
    less = one(checks.cached_tokens(patient(probed=Probed(200, "", 50, 16, True, 1))))
    assert less.severity is Severity.NOTE
    assert list(checks.cached_tokens(patient(probed=Probed(200, "", 10, 0, True, 1)))) == []  # too short to be found


def test_receipts_alone_show_that_cached_tokens_are_not_reported() -> None:
    silent = patient(probed=None, answered=Answered(requests=20, without_cached=20))
    assert one(checks.cached_tokens(silent)).fix == "start the engine with --enable-prompt-tokens-details"
    for usual in (Answered(requests=20, without_cached=19), Answered(requests=2, without_cached=2)):
        assert list(checks.cached_tokens(patient(probed=None, answered=usual))) == []


def test_a_probe_that_is_refused_says_why() -> None:
    finding = one(checks.cached_tokens(patient(probed=Probed(401, "no key"))))
    assert (finding.check, finding.fix) == ("probe", "set `api_key` of this replica")


def test_text_that_differs_is_the_tokenizer_and_chats_that_differ_are_the_template() -> None:
    """FC-22, FC-23: a begin marker more or less is a difference too."""
    text, chat = Parity(False, 9, 8, 3), Parity(True, 20, 21, 0)
    assert one(checks.tokens(patient(parity=(text, chat)), HOUSE)).check == "tokenizer"
    finding = one(checks.tokens(patient(parity=(Parity(False, 9, 9, None), chat)), HOUSE))
    assert (finding.check, finding.evidence) == ("template", "a chat: 20 tokens there, 21 here, first difference at token 0")
    ids = np.arange(5, dtype=np.int32)
    assert parity(True, [0, 1, 2, 3, 4], ids).equal
    assert parity(True, [0, 1, 2, 3], ids) == Parity(True, 4, 5, None)
    assert not parity(True, [0, 1, 2, 3], ids).equal
    assert parity(True, [7, 0, 1, 2, 3, 4], ids).first_difference == 0
    assert parity(True, ["0", 1], ids).first_difference == 0


def test_prompts_counted_otherwise_in_real_answers_are_an_error() -> None:
    wrong = patient(parity=(), parity_error="/tokenize answered 404 to a text", answered=Answered(50, 0, 50, 7))
    note, finding = checks.tokens(wrong, HOUSE)
    assert (note.severity, finding.severity, finding.check) == (Severity.NOTE, Severity.ERROR, "template")
    assert "7 of its last 50" in finding.evidence
    assert list(checks.tokens(patient(answered=Answered(1000, 0, 1000, 3)), HOUSE)) == []


def test_receipts_are_counted_by_replica() -> None:
    def receipt(replica: str, **fields: Any) -> Receipt:
        usual: dict[str, Any] = {"tokens_in": 40, "prompt_tokens": 40, "realised_tokens": 0, "outcome": "ok"}
        return Receipt("id", 0.0, "m", "cost", replica, 0, Decision(0, "load", 0.0, 0), **(usual | fields))

    told = [receipt("r"), receipt("r", realised_tokens=None), receipt("r", prompt_tokens=41), receipt("other")]
    told += [receipt("r", outcome="cut"), receipt("r", prompt_tokens=None), receipt("r", tokens_in=0, prompt_tokens=9)]
    assert answered("r", told) == Answered(requests=4, without_cached=1, counted=3, miscounted=1)


@pytest.mark.parametrize(
    ("skew_s", "error_s", "wrong"), [(1.9, 0.5, False), (3.0, 0.5, True), (-3.0, 0.5, True), (3.0, 2.0, False)]
)
def test_a_clock_is_wrong_beyond_what_a_date_can_tell(skew_s: float, error_s: float, wrong: bool) -> None:
    engine = EngineFacts(kind="vllm", skew_s=skew_s, skew_error_s=error_s)
    assert len(list(checks.clock(patient(engine=engine)))) == wrong


def test_without_a_date_events_from_the_future_tell() -> None:
    engine = EngineFacts(kind="vllm")
    late = replace(RANK, batches=3, apply_lag_s=-40.0)
    assert "-40.0 s old" in one(checks.clock(patient(engine=engine, ranks=(late,)))).evidence
    assert list(checks.clock(patient(engine=engine, ranks=(replace(late, apply_lag_s=0.3),)))) == []


def test_low_trust_is_told() -> None:
    assert "of its latest predictions 40% came true" in one(checks.trust(ranked(trust=0.4))).evidence


def test_ranks_of_different_block_sizes() -> None:
    """FC-17."""
    two = patient(ranks=(RANK, replace(RANK, rank=1, block_tokens=768)))
    assert "16 and 768 tokens a block" in one(checks.block_size(two)).evidence


@pytest.mark.parametrize(
    ("changes", "check", "severity", "fix"),
    [
        ({"reachable": True, "connected": False}, "event_port", Severity.ERROR, "trunkline events tail tcp://h:1"),
        ({"freshness": "silent"}, "events", Severity.ERROR, "--kv-events-config"),
        ({"decode_errors": 3}, "events", Severity.ERROR, "trunkline events tail"),
        ({"rank_mismatches": 3}, "events", Severity.WARNING, "rank r publishes at the port of rank 0 plus r"),
        ({"replay": None}, "replay", Severity.WARNING, '"replay_endpoint":"tcp://*:5657"'),
        ({"replay_error": "no reply for 3 s"}, "replay", Severity.WARNING, "open the port"),
        ({"newest": 9, "engine_newest": 4}, "epoch", Severity.ERROR, "drop the view now"),
        ({"freshness": "partial"}, "events", Severity.NOTE, "buffer_steps"),
    ],
)
def test_what_is_wrong_with_a_stream(changes: dict[str, Any], check: str, severity: Severity, fix: str) -> None:
    finding = one(stream_checks.streams(ranked(**changes), HOUSE))
    assert (finding.check, finding.severity, finding.rank) == (check, severity, 0)
    assert fix in finding.fix


def test_streams_do_not_matter_to_policies_that_ask_none_and_sockets_not_where_relays_write() -> None:
    blind = replace(HOUSE, policy="approximate", follows_events=False)
    assert list(stream_checks.streams(ranked(followed=False, events=None), blind)) == []
    assert list(stream_checks.streams(ranked(relayed=True, reachable=False, replay=None), HOUSE)) == []
    assert list(stream_checks.streams(ranked(events=None, polled=True), HOUSE)) == []


def test_an_engine_without_a_cache_owes_no_events() -> None:
    """One cause is told once."""
    for probed in (Probed(200, "", 50, 0, True, 0), Probed(200, "", 50, None, False, 0)):
        off = patient(engine=EngineFacts(kind="vllm", caching=False), probed=probed)
        assert list(stream_checks.streams(off, HOUSE)) == []
    unsaid = patient(engine=EngineFacts(kind="vllm"), probed=Probed(200, "", 50, 0, True, 0))
    assert list(stream_checks.streams(unsaid, HOUSE)) == []
    lost = patient(probed=Probed(200, "", 50, 48, True, 0))
    assert one(stream_checks.streams(lost, HOUSE)).check == "events"


def test_an_unset_port_that_nobody_is_at_is_the_engines_matter() -> None:
    wrong = patient(
        settings=ReplicaSettings(url="http://h:8000", events="tcp://h:1"),
        engine=EngineFacts(kind="vllm", told=Facts()),
        ranks=(replace(RANK, reachable=False, connected=False),),
    )
    finding = one(stream_checks.streams(wrong, HOUSE))
    assert "the engine itself says that it publishes nothing" in finding.evidence
    assert "--kv-events-config" in finding.fix


def test_one_name_of_an_adapter_means_one_adapter() -> None:
    def serving(name: str, *adapters: tuple[str, str]) -> Patient:
        cards = (Card("m", "m", None), *(Card(one, root, "m") for one, root in adapters))
        return patient(name=name, engine=EngineFacts(kind="vllm", cards=cards))

    same = [serving("a", ("sql", "/x")), serving("b", ("sql", "/x"))]
    assert list(stream_checks.fleet(same, HOUSE)) == []
    other = one(stream_checks.fleet([same[0], serving("b", ("sql", "/y"))], HOUSE))
    assert (other.severity, other.evidence) == (Severity.ERROR, "a: /x; b: /y")
    missing = one(stream_checks.fleet([same[0], serving("b")], HOUSE))
    assert (missing.severity, missing.replica) == (Severity.WARNING, "b")
    assert "lora_path '/x'" in missing.fix


def test_what_the_gateway_itself_lacks() -> None:
    lacking = replace(HOUSE, tokenizer="none", tokenizer_name=None, evicted=70)
    found = {finding.check: finding for finding in stream_checks.fleet([patient()], lacking)}
    assert found.keys() == {"tokenizer", "index"}
    assert found["index"].fix == "raise `index_mib`, to 2048 for a start"
    assert one(stream_checks.fleet([patient()], replace(HOUSE, tokenizer="loading"))).severity is Severity.ERROR


def test_replicas_of_one_model_with_different_block_sizes_are_noted() -> None:
    coarse = patient(name="b", ranks=(replace(RANK, block_tokens=64),))
    finding = one(stream_checks.fleet([patient(name="a"), coarse], HOUSE))
    assert (finding.severity, finding.evidence) == (Severity.NOTE, "16 tokens: a; 64 tokens: b")
