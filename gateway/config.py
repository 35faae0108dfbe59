"""Settings: one typed tree, the same names on the command line, in the YAML file and in the documentation.

Every error names the key and the value. Reading is strict: an unknown key is an error, not a silent default.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import yaml

from gateway.errors import ConfigError

Positive = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]  # seconds, to a year; infinite is no time at all
PositiveInt = Annotated[int, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Workers = Annotated[int, msgspec.Meta(ge=1, le=256)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,200}$")]  # stands in header fields, logs and metrics
PolicyName = Literal[
    "cost",
    "kv_aware",
    "approximate",
    "prefix_hash",
    "session",
    "least_loaded",
    "power_of_two",
    "round_robin",
    "random",
]
LogLevel = Literal["debug", "info", "warning", "error"]
DialectName = Literal["trunkline", "vllm", "sglang", "trtllm", "openai"]
WayName = Literal["direct", "redis"]
TlsVersion = Literal["1.2", "1.3"]

PASS_THROUGH = (
    "/v1/audio/",
    "/v1/images/",
    "/v1/videos",
    "/v1/videos/",
    "/v1/moderations",
    "/v1/score",
    "/score",
    "/v1/classify",
    "/classify",
    "/pooling",
    "/encode",
    "/v2/embed",
    "/v1/completions/render",
    "/v1/chat/completions/render",
)


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shared behaviour of all settings: immutable, keyword only, unknown keys refused."""


class ListenTls(_Settings, frozen=True):
    """TLS of a listening port. All files are PEM, and read again when they change.

    key: None where `cert` holds it, too. client_ca: clients need a certificate of one of these authorities.
    """

    cert: str
    key: str | None = None
    client_ca: str | None = None
    min_version: TlsVersion = "1.2"
    handshake_s: Positive = 10.0


class Listen(_Settings, frozen=True):
    """Where the two planes listen. Port 0 takes a free one (its number is printed at start)."""

    host: str = "0.0.0.0"
    port: Port = 8080
    control_host: str = "127.0.0.1"
    control_port: Port = 8081
    tls: ListenTls | None = None  # None: plain HTTP
    control_tls: ListenTls | None = None


class Limits(_Settings, frozen=True):
    """What one connection or request may take. Seconds are None for no limit."""

    head_bytes: PositiveInt = 16 * 1024
    head_fields: PositiveInt = 64
    body_bytes: PositiveInt = 64 * 1024 * 1024
    bodies_total_bytes: PositiveInt = 512 * 1024 * 1024  # of all requests being read or sent together
    connections: PositiveInt = 20_000
    head_s: Positive = 10.0
    body_stall_s: Positive = 30.0
    keep_alive_s: Positive = 75.0
    connect_s: Positive = 2.0
    first_byte_s: Positive | None = 120.0
    silence_s: Positive | None = 60.0  # between two reads from an engine, not for the whole stream
    write_stall_s: Positive = 60.0  # a client that takes nothing for this long is dropped
    drain_s: Positive = 30.0
    attempts: PositiveInt = 3  # replicas tried before the first byte


class ReplicaTls(_Settings, frozen=True):
    """TLS to replicas at https://. All files are PEM, and read again when they change.

    ca: authorities to trust, None for the system's. cert, key: what the gateway shows. server_name: the name their certificate
    must have, None for the host of the URL. verify: false takes any certificate.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None
    verify: bool | None = None  # None: true


class ReplicaSettings(_Settings, frozen=True):
    """One engine endpoint.

    events and replay: ZMQ endpoints of rank 0; rank r uses port + r. events may also be `http://host:port`, a queue to poll, with
    the events of all ranks. poll_events: poll it where the replica offers nothing else; the queue serves one reader only.
    block_tokens: per block of polled events, which do not say; 0 = asked from the replica, else that of its largest block.
    via: where the events are heard: from the replica, or from the relay that writes to `redis`, with the replica as the other
    way. None: by the relay where `redis` is set and `events` is not.
    """

    url: str
    name: Name | None = None
    events: str | None = None
    replay: str | None = None
    topic: str = ""
    dialect: DialectName | None = None  # None: asked from the replica, 'openai' until it answers
    api_key: str | None = None
    ranks: PositiveInt = 1
    poll_events: bool = True
    block_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    via: WayName | None = None
    tls: ReplicaTls | None = None  # what it leaves out is that of `replica_tls`


class Health(_Settings, frozen=True):
    """Active checks: every interval_s; down after `failures` in a row, up after `successes` in a row."""

    interval_s: Positive = 0.5
    timeout_s: Positive = 2.0
    failures: PositiveInt = 2
    successes: PositiveInt = 1


class Breaker(_Settings, frozen=True):
    """A replica that fails requests in a row gets none for open_s, then one on trial; open_s doubles each time that fails."""

    failures: PositiveInt = 5
    open_s: Positive = 1.0
    open_most_s: Positive = 60.0


class Outliers(_Settings, frozen=True):
    """A replica far worse than the others of its models over window_s gets nothing for eject_s, longer each time in a row.

    failure_share: of its requests. times: the others' median time to first byte per uncached token. share: of replicas, at most;
    at least one, never the last.
    """

    enabled: bool = True
    window_s: Positive = 30.0
    least_requests: PositiveInt = 20
    failure_share: Share = 0.5
    times: Annotated[float, msgspec.Meta(gt=1)] = 10.0
    eject_s: Positive = 15.0
    eject_most_s: Positive = 300.0
    share: Share = 0.34


class Retries(_Settings, frozen=True):
    """Requests sent to another replica: a share of all requests, and a few per second in any case."""

    share: Share = 0.2
    floor_per_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0


class Hedge(_Settings, frozen=True):
    """A second copy of a request that got no byte in time, to another replica; the first answer counts. Off by default.

    after_s: this long after it was sent. quantile: after so many of all streams had their first byte, once 100 have been seen.
    """

    after_s: Positive | None = None
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None


class Resilience(_Settings, frozen=True):
    """What is done about replicas in trouble. slow_start_s: over which one that joins comes to its full share; None: at once."""

    breaker: Breaker = Breaker()
    outliers: Outliers = Outliers()
    retries: Retries = Retries()
    hedge: Hedge = Hedge()
    slow_start_s: Positive | None = 10.0


class Admission(_Settings, frozen=True):
    """How much a replica's rank is given at a time, and who waits where none has room. Far above what an engine runs at once.

    rank_requests: open ones. rank_tokens: uncached prompt tokens not yet prefilled; a rank below it takes any one prompt more.
    waiting_*: of the line, the arriving request included; each worker has its share. shed_lag_s: of our own loop, above which
    lower priorities are refused; None: never.
    """

    rank_requests: PositiveInt = 1024
    rank_tokens: PositiveInt = 1_000_000
    waiting_requests: PositiveInt = 1024
    waiting_tokens: PositiveInt = 8_000_000
    wait_s: Positive = 30.0
    shed_lag_s: Positive | None = 0.5


class RedisSettings(_Settings, frozen=True):
    """Where relays write. url: redis://, rediss:// or unix://, with user and password where they are needed."""

    url: str
    prefix: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,100}$")] = "trunkline"


class RecordSettings(_Settings, frozen=True):
    """A trace of the traffic for the simulator, without texts. file: a new one is begun at each start, older ones are kept.

    block_tokens: of the trace; the engines' block size lets a replay hit what they hit.
    """

    file: Annotated[str, msgspec.Meta(min_length=1)]
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 16
    max_mib: Annotated[int, msgspec.Meta(ge=1, le=1_048_576)] = 1024  # of the file; the recording ends there


class TokenizerCaches(_Settings, frozen=True):
    """What is remembered between requests, so that a growing chat tokenizes only its new turns. Ids are the same without."""

    segments: bool = True  # pieces of rendered prompts, cut behind end-of-turn tokens
    plan: bool = True  # turns of plain chats, whose template then is not run
    lift: bool = True  # long texts of bodies above 4 KB, which then are not parsed again
    budget_mib: Annotated[int, msgspec.Meta(gt=0, le=1_048_576)] = 64  # of each process: half for ids, half for long texts


class Models(_Settings, frozen=True):
    """Names of models beside those that replicas serve. aliases: name -> the served name that engines get in its place."""

    aliases: dict[str, str] = {}


class Settings(_Settings, frozen=True):
    """Everything `trunkline serve` can be told."""

    listen: Listen = Listen()
    workers: Workers = 1  # processes that serve clients; more than one share the data port and an index process
    replicas: tuple[ReplicaSettings, ...] = ()
    replica_tls: ReplicaTls | None = None  # of all replicas
    policy: PolicyName = "cost"
    tokenizer: str | None = None  # a Hugging Face folder or 'smollm2'; None: no tokens, requests go by load
    tokenizer_caches: TokenizerCaches = TokenizerCaches()
    api_keys_file: str | None = None  # lines `name:sha256-hex`; None: no client key is asked for
    pass_authorization: bool = False  # forward the client's Authorization to engines (FC-60)
    response_headers: bool = True  # x-trunkline-*
    meter_streams: bool = True  # ask engines for usage on streams whose client did not, and take that chunk out again (FC-42)
    receipts: PositiveInt = 4096
    record: RecordSettings | None = None  # None: traffic is not recorded
    request_log: Annotated[str, msgspec.Meta(min_length=1)] | None = None  # a file, '-' for stdout; a JSON line per request
    guess_ttl_s: Positive = 10.0
    index_mib: Annotated[int, msgspec.Meta(ge=1, le=16_000)] = 1024  # for blocks of all replicas; above it the longest unused go
    redis: RedisSettings | None = None  # None: every gateway listens to every replica
    admin_networks: tuple[str, ...] = ()  # CIDRs in which a replica may be added at run time; none by default
    models: Models = Models()
    pass_through: tuple[str, ...] = PASS_THROUGH  # further paths that engines get; one that ends in / stands for all below it
    limits: Limits = Limits()
    health: Health = Health()
    resilience: Resilience = Resilience()
    admission: Admission = Admission()
    log_level: LogLevel = "info"


_OPTION_VALUES = {"true": True, "false": False}
_CHOICES: dict[str, Any] = {
    "policy": PolicyName,
    "dialect": DialectName,
    "via": WayName,
    "log_level": LogLevel,
    "min_version": TlsVersion,
}


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once; of two equal ones the first would be lost without a word."""


def _unique(loader: _Loader, node: yaml.MappingNode) -> dict[object, object]:
    seen: set[object] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if isinstance(key, str) and key in seen:
            raise ConfigError(f"{key}: given twice, the second time in line {key_node.start_mark.line + 1}")
        seen.add(key if isinstance(key, str) else repr(key))
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique)


def load_settings(path: Path) -> Settings:
    """Read a YAML file; raises ConfigError naming the file, the key and the value."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return settings_from(raw or {}, source=str(path))


def settings_from(raw: object, *, source: str) -> Settings:
    """Turn plain data into Settings; raises ConfigError naming the key and the value."""
    try:
        return msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        key = where.rstrip("`").lstrip(".") or "the top level"
        choices = _CHOICES.get(key.rpartition(".")[2])
        if choices and message.startswith("Invalid enum value"):
            message = f"must be one of {', '.join(get_args(choices))}"
        raise ConfigError(f"{source}: {key}: {message}{_found(raw, key)}") from error


def settings_as_data(settings: _Settings) -> dict[str, Any]:
    """Settings as plain data, as a YAML file would hold them. Secrets are in it: never log it."""
    data: dict[str, Any] = msgspec.to_builtins(settings)
    return data


def parse_replica(text: str) -> ReplicaSettings:
    """One `--replica URL[,events=...,replay=...,name=...]`; raises ConfigError naming the option and the value."""
    url, *options = text.split(",")
    fields: dict[str, Any] = {"url": url}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator:
            raise ConfigError(f"--replica {url}: {option!r} is not key=value")
        place = fields
        if key.startswith("tls."):
            key = key.removeprefix("tls.")
            place = fields.setdefault("tls", {})
        place[key] = _OPTION_VALUES.get(value, value) if key in ("poll_events", "verify") else value
        if key in ("ranks", "block_tokens") and re.fullmatch("[0-9]{1,9}", value):
            fields[key] = int(value)
    try:
        return msgspec.convert(fields, ReplicaSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--replica {url}: {error}") from error


def _found(raw: object, path: str) -> str:
    """', got VALUE' for a path like replicas[0].url, where it can be followed; secrets are not repeated."""
    if "api_key" in path or path.startswith("redis"):
        return ""
    value = raw
    for step in path.replace("[", ".").replace("]", "").split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return ""
    return "" if value is None else f", got {value!r:.200}"
