"""The checks of one replica's event streams, and those of the fleet as a whole; facts in, findings out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gateway.doctor import fixes
from gateway.doctor.types import Card, EngineFacts, Finding, House, Patient, Probed, RankFacts, Severity


def streams(patient: Patient, house: House) -> Iterator[Finding]:
    """Each rank's events come, whole, from the process that answers requests."""
    if not house.follows_events:
        return
    engine = patient.engine or EngineFacts()
    for rank in patient.ranks:
        found = list(_source(patient, engine, rank)) or list(_flow(patient, engine, rank))
        yield from found
        if not found:
            yield from _past(patient, engine, rank)


def _source(patient: Patient, engine: EngineFacts, rank: RankFacts) -> Iterator[Finding]:
    """There is somewhere to listen, and somebody there."""
    if not rank.followed and rank.events is None and not rank.polled:
        what = "it publishes no KV events, so nothing is known of its cache"
        evidence = f"neither the settings nor the engine name a place where rank {rank.rank} publishes"
        yield _finding(patient, rank, Severity.ERROR, "events", what, evidence, fixes.events_on(engine.kind))
    elif rank.reachable is False and not rank.relayed:
        said = engine.told.event_sources.get(rank.rank)
        fix = f"{fixes.events_on(engine.kind)}, and open the port in its container and network policy"
        evidence = f"nobody listens at {rank.events}"
        if said is not None and _port(said[0]) != _port(rank.events):
            evidence += f"; the engine says it publishes at port {_port(said[0])}"
            fix = f"set `events` of this replica to tcp://*:{_port(said[0])}, or remove it: the engine says where"
        elif said is None and patient.settings.events is not None and engine.kind != "unknown":
            evidence += "; the engine itself says that it publishes nothing"
        yield _finding(patient, rank, Severity.ERROR, "event_port", "its event port cannot be reached", evidence, fix)


def _flow(patient: Patient, engine: EngineFacts, rank: RankFacts) -> Iterator[Finding]:
    """Events come when there is something to tell."""
    if not rank.connected and rank.reachable:
        fix = "check that this port is the engine's event endpoint: `trunkline events tail " + f"{rank.events}`"
        evidence = f"{rank.events} accepts connections, but no event stream answers there"
        yield _finding(patient, rank, Severity.ERROR, "event_port", "somebody else is at its event port", evidence, fix)
        return
    if rank.freshness == "silent" or (rank.rank == 0 and _owed(patient.probed, engine)):
        ours, theirs = patient.settings.topic, engine.told.topic
        evidence = "a prompt was computed and no event came"
        fix = fixes.events_on(engine.kind)
        if ours and ours != theirs:
            evidence += f"; `topic` of this replica is {ours!r}, the engine's is {theirs!r}"
            fix = f"set `topic` of this replica to {theirs!r}, or remove it"
        yield _finding(patient, rank, Severity.ERROR, "events", "its events do not come", evidence, fix)
    if rank.decode_errors:
        evidence = f"{rank.decode_errors} messages could not be read"
        fix = f"look at them with `trunkline events tail {rank.events}`; the engine may be newer than this gateway"
        yield _finding(patient, rank, Severity.ERROR, "events", "its events cannot be read", evidence, fix)
    if rank.rank_mismatches:
        evidence = f"{rank.rank_mismatches} messages on this rank's port name another rank"
        fix = "give each rank its own port: rank r publishes at the port of rank 0 plus r"
        yield _finding(patient, rank, Severity.WARNING, "events", "ranks and ports are crossed", evidence, fix)


def _owed(probed: Probed | None, engine: EngineFacts) -> bool:
    """The probe, which goes to rank 0, should have made an event and did not; an engine that keeps nothing owes none."""
    if probed is None or probed.status != 200 or probed.new_batches != 0 or engine.caching is False:
        return False
    return not probed.tells_cached or bool(probed.cached_tokens)


def _past(patient: Patient, engine: EngineFacts, rank: RankFacts) -> Iterator[Finding]:
    """What was missed can be had again, and what we have is of this life of the engine."""
    if rank.relayed or rank.events is None:
        return
    if rank.replay is None:
        what = "its past cannot be asked for: every gap and every new gateway starts from what comes next"
        evidence = "no replay endpoint is set, and the engine names none"
        yield _finding(patient, rank, Severity.WARNING, "replay", what, evidence, fixes.replay_on(engine.kind))
    elif rank.replay_error is not None:
        fix = f"{fixes.replay_on(engine.kind)}, and open the port in its container and network policy"
        yield _finding(patient, rank, Severity.WARNING, "replay", "its replay does not answer", rank.replay_error, fix)
    elif rank.engine_newest is not None and rank.engine_newest < rank.newest:
        theirs = f"number {rank.engine_newest}" if rank.engine_newest >= 0 else "none at all"
        evidence = f"our view ends with batch {rank.newest}, the newest the engine has is {theirs}"
        fix = (
            f"drop the view now: DELETE and POST /replicas for {patient.name!r}, or restart the gateway. So that it is noticed "
            "at once, let the gateway connect to the engine's event port directly, not through a proxy or load balancer"
        )
        what = "the view is of an earlier life: the engine restarted and the stream has not said so"
        yield _finding(patient, rank, Severity.ERROR, "epoch", what, evidence, fix)
    elif rank.freshness == "partial":
        evidence = f"freshness partial, {rank.gaps} gaps, {rank.restarts} restarts seen"
        fix = "raise buffer_steps of the engine's events, or reset its prefix cache when it is idle; it heals as blocks change"
        yield _finding(patient, rank, Severity.NOTE, "events", "only a part of its cache is known", evidence, fix)


def fleet(patients: Sequence[Patient], house: House) -> Iterator[Finding]:
    """What replicas say of each other, and what the gateway itself lacks."""
    yield from _block_sizes(patients)
    yield from _adapters(patients)
    if house.tokenizer == "none":
        fix = "set `tokenizer` to the model's Hugging Face folder"
        what = "no tokenizer is set: requests go by load alone"
        yield Finding(Severity.WARNING, "tokenizer", what, "`tokenizer` is not set", fix)
    elif house.tokenizer == "loading":
        fix = f"look for 'tokenizer failed to load' in the gateway's log; the setting is {house.tokenizer_name!r}"
        yield Finding(Severity.ERROR, "tokenizer", "the tokenizer is not loaded", "requests go by load meanwhile", fix)
    if house.evicted:
        evidence = f"{house.evicted} blocks were given up for want of memory, index_mib is {house.index_mib}"
        fix = f"raise `index_mib`, to {2 * house.index_mib} for a start"
        yield Finding(Severity.WARNING, "index", "the index forgets what replicas still hold", evidence, fix)


def _block_sizes(patients: Sequence[Patient]) -> Iterator[Finding]:
    by_model: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for patient in patients:
        size = max((rank.block_tokens for rank in patient.ranks), default=0)
        if size and patient.models:
            by_model[patient.models[0]][size].append(patient.name)
    for model, sizes in by_model.items():
        if len(sizes) > 1:
            evidence = "; ".join(f"{size} tokens: {', '.join(names)}" for size, names in sorted(sizes.items()))
            what = f"replicas of {model} have different block sizes; credit is right, and coarser blocks hit less"
            fix = "give all of them the same block size when they are started next"
            yield Finding(Severity.NOTE, "block_size", what, evidence, fix)


def _adapters(patients: Sequence[Patient]) -> Iterator[Finding]:
    """Replicas of one base model have the same adapters, and one name means one adapter."""
    groups: dict[str, list[tuple[Patient, dict[str, Card]]]] = defaultdict(list)
    for patient in patients:
        cards = patient.engine.cards if patient.engine is not None else ()
        base = next((card.name for card in cards if card.parent is None), None)
        if base is not None:
            groups[base].append((patient, {card.name: card for card in cards if card.parent is not None}))
    for base, members in groups.items():
        for name in sorted({name for _, adapters in members for name in adapters}):
            yield from _adapter(base, name, members)


def _adapter(base: str, name: str, members: Sequence[tuple[Patient, dict[str, Card]]]) -> Iterator[Finding]:
    having = [(patient, adapters[name]) for patient, adapters in members if name in adapters]
    roots = {card.root for _, card in having}
    if len(roots) > 1:
        evidence = "; ".join(f"{patient.name}: {card.root}" for patient, card in having)
        fix = f"load {name!r} from the same path everywhere, or give the other one another name"
        what = f"adapter {name!r} of {base} is not the same one on all replicas"
        yield Finding(Severity.ERROR, "adapters", what, evidence, fix)
    for patient, adapters in members:
        if name not in adapters:
            root = having[0][1].root or "PATH"
            evidence = f"{', '.join(other.name for other, _ in having)} have it, its own /v1/models does not name it"
            fix = (
                f"load it there: POST /v1/load_lora_adapter with lora_name {name!r} and lora_path {root!r}, "
                f"or start the engine with --lora-modules {name}={root}"
            )
            what = f"it lacks adapter {name!r} of {base}, so requests for it cannot go there"
            yield Finding(Severity.WARNING, "adapters", what, evidence, fix, patient.name)


def _port(endpoint: str | None) -> str:
    return (endpoint or "").rpartition(":")[2]


def _finding(patient: Patient, rank: RankFacts, severity: Severity, check: str, what: str, evidence: str, fix: str) -> Finding:
    return Finding(severity, check, what, evidence, fix, patient.name, rank.rank)
