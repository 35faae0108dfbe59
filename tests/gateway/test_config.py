"""Settings: strict, and every error names the key and the value."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.check import check_settings
from gateway.config import (
    Admission,
    Breaker,
    Health,
    Hedge,
    Limits,
    Listen,
    Models,
    Outliers,
    RecordSettings,
    RedisSettings,
    ReplicaSettings,
    Resilience,
    Retries,
    Settings,
    TokenizerCaches,
    load_settings,
    parse_replica,
    settings_as_data,
    settings_from,
)
from gateway.errors import ConfigError
from gateway.options import merged_settings


def _write(folder: Path, text: str) -> Path:
    path = folder / "trunkline.yaml"
    path.write_text(text)
    return path


def test_a_file_becomes_settings_and_the_rest_keeps_its_defaults(tmp_path: Path) -> None:
    text = "policy: round_robin\nlisten: {port: 9000}\nreplicas:\n  - {url: 'http://a:8000', events: 'tcp://a:5557'}\n"
    settings = load_settings(_write(tmp_path, text))
    assert settings.policy == "round_robin"
    assert (settings.listen.port, settings.listen.control_port) == (9000, 8081)
    assert settings.replicas[0].events == "tcp://a:5557"
    assert settings.limits.body_bytes == 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("policy: fastest", ["policy", "fastest"]),
        ("listen: {port: 70000}", ["listen.port", "70000"]),
        ("limits: {head_s: 0}", ["limits.head_s", "got 0"]),
        ("limits: {heads: 1}", ["limits", "heads"]),
        ("polcy: cost", ["polcy"]),
        ("replicas: [{url: 'http://a', ranks: x}]", ["replicas[0].ranks", "'x'"]),
        ("replicas: 5", ["replicas", "got 5"]),
        ("a: [", ["not valid YAML"]),
        ("- 1", ["the top level"]),
        ("policy: cost\npolicy: round_robin", ["policy", "twice", "line 2"]),
        ("[" * 3000, ["not valid YAML"]),
        ("tokenizer_caches: {budget_mib: 0}", ["tokenizer_caches.budget_mib", "got 0"]),
        ("tokenizer_caches: {plan: sometimes}", ["tokenizer_caches.plan", "'sometimes'"]),
        ("tokenizer_caches: {plans: true}", ["tokenizer_caches", "plans"]),
        ("record: {file: ''}", ["record.file", "''"]),
        ("record: {file: x, block_tokens: 0}", ["record.block_tokens", "got 0"]),
        ("health: {timeout_s: .inf}", ["health.timeout_s", "inf"]),
        ("replicas: [{url: 'http://a', name: 'a b'}]", ["replicas[0].name", "'a b'"]),
    ],
)
def test_a_wrong_file_is_refused_naming_key_and_value(tmp_path: Path, text: str, names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(_write(tmp_path, text))
    for name in names:
        assert name in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"policy: \xff")
    with pytest.raises(ConfigError, match="not UTF-8: byte 8 is 0xff"):
        load_settings(path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("policy: cost", ["replicas", "none given"]),
        ("replicas: [{url: 'ftp://x'}]", ["replicas[0]", "ftp://x"]),
        ("replicas: [{url: 'http://h:99999'}]", ["replicas[0]", "h:99999"]),
        ("replicas: [{url: 'http://[::1'}]", ["replicas[0]", "[::1"]),
        ("replicas: [{url: 'http://a', events: foo}]", ["replicas[0]", "events", "foo"]),
        ("replicas: [{url: 'http://a', replay: 'tcp://a:65535', ranks: 2}]", ["replicas[0]", "replay", "65536"]),
        ("replicas: [{url: 'http://a', events: 'http://*:8000'}]", ["replicas[0]", "events", "http://*:8000"]),
        ("replicas: [{url: 'http://a', events: 'http://a:8000', replay: 'tcp://a:1'}]", ["replicas[0]", "replay", "tcp://a:1"]),
        ("replicas: [{url: 'http://a'}, {url: 'http://b', name: 'a:80'}]", ["replicas[1].name", "a:80", "replicas[0]"]),
        ("replicas: [{url: 'http://a'}]\nadmin_networks: [abc]", ["admin_networks", "abc"]),
        ("replicas: [{url: 'http://a'}]\napi_keys_file: /nowhere/keys", ["/nowhere/keys"]),
        ("replicas: [{url: 'http://a', via: redis}]", ["replicas[0].via", "redis is not set"]),
        ("replicas: [{url: 'http://a'}]\nredis: {url: 'http://h:1'}", ["redis.url", "http://h:1"]),
    ],
)
def test_what_serve_would_refuse_is_refused_by_the_check_too(tmp_path: Path, text: str, names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings(load_settings(_write(tmp_path, text)))
    for name in names:
        assert name in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_settings(tmp_path / "nowhere.yaml")


def test_a_wrong_api_key_type_is_refused_without_repeating_the_key() -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from({"replicas": [{"url": "http://a", "api_key": 998877}]}, source="test")
    assert "api_key" in str(caught.value)
    assert "998877" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://u:geheim@h", 5, "redis://:geheim@h:0"])
def test_a_wrong_redis_url_is_refused_without_repeating_its_password(url: object) -> None:
    """FC-59: nor when it is no text at all."""
    with pytest.raises(ConfigError, match=r"redis\.url") as caught:
        check_settings(settings_from({"replicas": [{"url": "http://a"}], "redis": {"url": url}}, source="test"))
    assert "geheim" not in str(caught.value)
    assert ", got 5" not in str(caught.value)


def test_redis_is_set_by_option_beside_the_prefix_of_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path, "redis: {url: 'redis://a', prefix: mine}\nreplicas: [{url: 'http://a:8000', via: direct}]\n")
    redis = merged_settings(path, [], {"redis.url": "redis://b"}).redis
    assert redis is not None
    assert (redis.url, redis.prefix) == ("redis://b", "mine")
    redis = merged_settings(None, ["http://a"], {"redis.url": "redis://b"}).redis
    assert redis is not None
    assert (redis.url, redis.prefix) == ("redis://b", "trunkline")


def test_replica_option_takes_the_same_names_as_the_file() -> None:
    replica = parse_replica("http://a:8000,events=tcp://a:5557,replay=tcp://a:5558,name=first,ranks=2")
    assert (replica.url, replica.events, replica.replay) == ("http://a:8000", "tcp://a:5557", "tcp://a:5558")
    assert (replica.name, replica.ranks) == ("first", 2)
    replica = parse_replica("http://a:8000,events=http://a:8000,poll_events=false,block_tokens=64")
    assert (replica.events, replica.poll_events, replica.block_tokens) == ("http://a:8000", False, 64)
    check_settings(Settings(replicas=(replica,)))


@pytest.mark.parametrize(
    "text",
    [
        "http://a,event=tcp://a:1",
        "http://a,events",
        "http://a,ranks=-1",
        "http://a,dialect=foo",
        "http://a,poll_events=maybe",
        "http://a,block_tokens=x",
    ],
)
def test_a_wrong_replica_option_names_the_replica(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--replica http://a"):
        parse_replica(text)


def test_options_win_over_the_file_and_not_given_ones_do_not(tmp_path: Path) -> None:
    path = _write(tmp_path, "policy: round_robin\nlisten: {port: 9000}\nreplicas: [{url: 'http://a:8000'}]\n")
    settings = merged_settings(path, [], {"listen.port": 1234, "policy": None})
    assert (settings.listen.port, settings.policy) == (1234, "round_robin")
    settings = merged_settings(path, ["http://b:1", "http://c:1"], {})
    assert [replica.url for replica in settings.replicas] == ["http://b:1", "http://c:1"]


def test_no_replica_at_all_is_wrong_use() -> None:
    with pytest.raises(ConfigError, match="none given"):
        merged_settings(None, [], {})


def test_settings_survive_the_way_through_plain_data() -> None:
    settings = settings_from({"replicas": [{"url": "http://a:1"}], "limits": {"silence_s": None}}, source="test")
    assert settings_from(settings_as_data(settings), source="again") == settings
    assert Settings() == settings_from({}, source="empty")


def test_every_setting_is_in_the_reference() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()

    def names(struct: type[msgspec.Struct]) -> list[str]:
        return [field.name for field in msgspec.structs.fields(struct)]

    protection = (Resilience, Breaker, Outliers, Retries, Hedge, Admission)
    others = (RecordSettings, RedisSettings, TokenizerCaches)
    for struct in (Settings, Listen, Limits, ReplicaSettings, Health, Models, *others, *protection):
        missing = [name for name in names(struct) if f"`{name}`" not in text and f"`{name}[]`" not in text]
        assert not missing, f"docs/configuration.md does not name {missing} of {struct.__name__}"
