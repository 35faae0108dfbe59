"""One replica's checks: facts in, findings out; no I/O. Those of its event streams are in `stream_checks`."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.choose.price import DEFAULT_BLOCK_TOKENS, credit_tokens
from gateway.doctor import fixes
from gateway.doctor.types import EngineFacts, Finding, House, Parity, Patient, Severity

_SKEW_S = 2.0
_LAG_S = 30.0  # an event that seems older than this, or from the future, when no `Date` tells
_TRUST = 0.8
_MISCOUNTED_SHARE = 0.01
_ENOUGH = 5  # requests


def reachable(patient: Patient) -> Iterator[Finding]:
    """It answers, and it says what it serves."""
    error = patient.last_error or ""
    if not patient.healthy or patient.engine is None:
        fix = f"start it, or correct `url` of this replica ({patient.url})"
        if "401" in error or "403" in error:
            fix = "set `api_key` of this replica to the engine's key"
        elif "Timeout" in error:
            fix = "look at the engine's load and log; `health.timeout_s` is how long it may take to answer"
        yield _finding(patient, Severity.ERROR, "reachable", "it does not answer", error or "no answer yet", fix)
    elif not patient.models:
        fix = "check /v1/models of the engine: until it names a model, any request may be sent there"
        yield _finding(patient, Severity.WARNING, "reachable", "it names no model", "/v1/models has no card", fix)


def dialect(patient: Patient) -> Iterator[Finding]:
    """It is spoken to as what it is."""
    wanted = patient.settings.dialect
    if patient.engine is not None and wanted is not None and patient.engine.kind in ("vllm", "sglang", "trunkline"):
        kind = patient.engine.kind
        if wanted != kind and kind == "trunkline":
            fix = "remove `dialect` of this replica: it is then asked from the replica"
            yield _finding(patient, Severity.WARNING, "dialect", f"it is spoken to as {wanted!r}", f"it is {kind!r}", fix)


def block_size(patient: Patient) -> Iterator[Finding]:
    """Setting, pages and events name one block size (FC-17)."""
    said, sizes = patient.engine, {rank.block_tokens for rank in patient.ranks if rank.block_tokens}
    if len(sizes) > 1:
        evidence = f"events of its ranks are of {_list(sizes)} tokens a block"
        fix = f"start all ranks with one {fixes.block_size_flag(said.kind if said else '')}"
        yield _finding(patient, Severity.ERROR, "block_size", "its ranks have different block sizes", evidence, fix)
        return
    for size in sizes:
        if patient.settings.block_tokens not in (0, size):
            what, ours = "the setting names a wrong block size", patient.settings.block_tokens
            evidence = f"`block_tokens` is {ours}, its events are of {size} tokens a block"
            yield _finding(patient, Severity.ERROR, "block_size", what, evidence, f"set `block_tokens` to {size}, or remove it")
        if said is not None and said.block_tokens not in (None, size):
            evidence = f"its pages say {said.block_tokens} tokens a block, its events {size}"
            fix = (
                f"restart the engine with {fixes.block_size_flag(said.kind)} {said.block_tokens} if that is what was meant, else "
                f"count on {size}: that is what this gateway does"
            )
            what = "the engine uses another block size than it says"
            yield _finding(patient, Severity.ERROR, "block_size", what, evidence, fix)


def cached_tokens(patient: Patient) -> Iterator[Finding]:
    """It keeps prefixes, and reports what it found."""
    kind = patient.engine.kind if patient.engine is not None else "unknown"
    probed, answered = patient.probed, patient.answered
    if patient.engine is not None and patient.engine.caching is False:
        evidence = "its own pages say so"
        yield _finding(patient, Severity.ERROR, "prefix_caching", "prefix caching is off", evidence, fixes.caching_on(kind))
        return
    if probed is not None and probed.status != 200:
        evidence = f"status {probed.status}: {probed.error}"
        fix = "set `api_key` of this replica" if probed.status in (401, 403) else "look at the engine's log"
        yield _finding(patient, Severity.WARNING, "probe", "it refused a small completion", evidence, fix)
        return
    if probed is not None and probed.tells_cached:
        yield from _found_again(patient, kind)
        return
    silent = answered.requests >= _ENOUGH and answered.without_cached == answered.requests
    told_off = patient.engine is not None and patient.engine.tells_cached is False
    if probed is not None or silent or told_off:
        evidence = "a prompt sent twice came back without usage.prompt_tokens_details.cached_tokens"
        if probed is None:
            evidence = "its own pages say so" if told_off else f"none of its last {answered.requests} answers had them"
        what = "it does not report cached tokens, so no prediction can be checked and trust cannot be learned"
        yield _finding(patient, Severity.ERROR, "cached_tokens", what, evidence, fixes.cached_on(kind))


def _found_again(patient: Patient, kind: str) -> Iterator[Finding]:
    """What the second of two equal prompts found cached."""
    probed = patient.probed
    assert probed is not None
    size = max((rank.block_tokens for rank in patient.ranks), default=0)
    expected = credit_tokens(probed.prompt_tokens or 0, probed.prompt_tokens or 0, size or DEFAULT_BLOCK_TOKENS)
    found = probed.cached_tokens or 0
    evidence = f"a prompt of {probed.prompt_tokens} tokens sent twice: {found} of {expected} tokens were found the second time"
    if expected and not found:
        what = "nothing is cached between requests"
        yield _finding(patient, Severity.ERROR, "prefix_caching", what, evidence, fixes.caching_on(kind))
    elif found < expected and size:
        fix = "give the engine more KV memory; of hybrid models less is found, and that is known"
        yield _finding(patient, Severity.NOTE, "prefix_caching", "less was cached than could be", evidence, fix)


def tokens(patient: Patient, house: House) -> Iterator[Finding]:
    """Its token ids are ours (FC-22)."""
    if patient.parity_error is not None:
        fix = "nothing, where the engine has no such page; what it counts of prompts is still compared, see `trunkline top`"
        what = "its token ids could not be compared with ours"
        yield _finding(patient, Severity.NOTE, "tokens", what, patient.parity_error, fix)
    wrong = [one for one in patient.parity if not one.equal]
    folder = house.tokenizer_name or "the folder"
    if any(not one.chat for one in wrong):
        root = patient.engine.cards[0].root if patient.engine is not None and patient.engine.cards else None
        served = f" ({root})" if root else ""
        fix = f"set `tokenizer` to the folder of the very model the engine serves{served}; it is {folder!r} now"
        what = "its tokenizer is another one than ours"
        yield _finding(patient, Severity.ERROR, "tokenizer", what, _difference(wrong), fix)
    elif wrong:
        kind = patient.engine.kind if patient.engine is not None else "unknown"
        flag = "--chat-template" if kind in ("vllm", "sglang") else "the template of the same folder"
        fix = (
            f"use one template on both sides: start the engine with {flag} as in {folder}, "
            f"or put the engine's chat template into {folder}/chat_template.jinja"
        )
        what = "its chat template is another one than ours; plain text gives the same ids"
        yield _finding(patient, Severity.ERROR, "template", what, _difference(wrong), fix)
    answered = patient.answered
    if not wrong and answered.counted >= _ENOUGH and answered.miscounted > _MISCOUNTED_SHARE * answered.counted:
        evidence = f"in {answered.miscounted} of its last {answered.counted} answers it counted other prompt tokens than we did"
        fix = f"compare the engine's chat template and template options with {folder}"
        yield _finding(patient, Severity.ERROR, "template", "it makes other tokens of some requests", evidence, fix)


def _difference(wrong: list[Parity]) -> str:
    """Of the ids of our own test texts only."""
    first = wrong[0]
    at = f"first difference at token {first.first_difference}" if first.first_difference is not None else "one ends earlier"
    return f"{'a chat' if first.chat else 'a text'}: {first.engine_tokens} tokens there, {first.our_tokens} here, {at}"


def clock(patient: Patient) -> Iterator[Finding]:
    """Its clock is ours, nearly."""
    engine = patient.engine
    fix = "keep the clocks of both hosts right with NTP (chrony or systemd-timesyncd), then compare `date` on both"
    what = "its clock is not ours: lags of events and times of its traces are wrong by as much"
    if engine is not None and engine.skew_s is not None:
        if abs(engine.skew_s) > _SKEW_S + engine.skew_error_s:
            yield _finding(patient, Severity.WARNING, "clock", what, _skew(engine), fix)
        return
    for rank in patient.ranks:
        if rank.batches and (rank.apply_lag_s < -_SKEW_S or rank.apply_lag_s > _LAG_S):
            evidence = f"its newest event seems {rank.apply_lag_s:.1f} s old on arrival"
            yield _finding(patient, Severity.WARNING, "clock", what, evidence, fix, rank.rank)


def _skew(engine: EngineFacts) -> str:
    assert engine.skew_s is not None
    way = "ahead of" if engine.skew_s > 0 else "behind"
    return f"its HTTP Date is {abs(engine.skew_s):.0f} s {way} our clock"


def trust(patient: Patient) -> Iterator[Finding]:
    """What was predicted was found."""
    for rank in patient.ranks:
        if rank.trust < _TRUST:
            evidence = f"of its latest predictions {rank.trust:.0%} came true"
            fix = (
                "settle the other findings of this replica first; then compare `trunkline index dump --replica "
                f"{patient.name}` with the engine's own figures, and look for requests with salts, adapters or images"
            )
            yield _finding(patient, Severity.WARNING, "trust", "it delivers less than predicted", evidence, fix, rank.rank)


def _list(sizes: set[int]) -> str:
    return " and ".join(map(str, sorted(sizes)))


def _finding(
    patient: Patient, severity: Severity, check: str, what: str, evidence: str, fix: str, rank: int | None = None
) -> Finding:
    return Finding(severity, check, what, evidence, fix, patient.name, rank)
