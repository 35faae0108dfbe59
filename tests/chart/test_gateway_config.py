"""The file the chart writes is a file the gateway reads, and both know the same settings."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any, get_args

import helm_python
import msgspec
import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from gateway.config import DialectName, PolicyName, ReplicaSettings, Settings, settings_from
from gateway.fleet import Address
from tests.chart.cases import CASES, EXTERNAL
from tests.chart.rendering import FOLDER, Object, container, gateway, gateway_yaml, of_kind, options, render

WRITTEN_BY_THE_CHART = {"listen", "replicas", "api_keys_file"}


def schema() -> dict[str, Any]:
    """values.schema.json."""
    data: dict[str, Any] = json.loads((FOLDER / "values.schema.json").read_text(encoding="utf-8"))
    return data


def test_the_gateway_accepts_the_file(objects: list[Object]) -> None:
    settings = settings_from(gateway_yaml(objects), source="gateway.yaml")
    for replica in settings.replicas:
        Address.parse(replica.url)
    assert settings.replicas


def test_defaults_of_the_chart_are_the_defaults_of_the_gateway(chart: helm_python.Chart) -> None:
    """Only the tokenizer differs, because the chart knows which model its own replicas run."""
    got = msgspec.to_builtins(settings_from(gateway_yaml(render(chart, {})), source="gateway.yaml"))
    want = msgspec.to_builtins(Settings())
    assert got.pop("tokenizer") == "smollm2"
    assert want.pop("tokenizer") is None
    for name in WRITTEN_BY_THE_CHART:
        got.pop(name), want.pop(name)
    assert got == want


def _names(schema: dict[str, Any]) -> dict[str, Any]:
    """Settings of a schema, those inside others below them."""
    return {name: _names(inner) if inner.get("type") == "object" else {} for name, inner in schema["properties"].items()}


def _names_of(settings: msgspec.Struct) -> dict[str, Any]:
    """The same of a struct."""
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return {name: _names_of(value) if isinstance(value, msgspec.Struct) else {} for name, value in values.items()}


def test_the_schema_knows_every_setting() -> None:
    properties = schema()["properties"]
    config = properties["config"]["properties"]
    assert config.keys() == set(Settings.__struct_fields__) - WRITTEN_BY_THE_CHART
    assert config["limits"]["properties"].keys() == set(type(Settings().limits).__struct_fields__)
    assert config["health"]["properties"].keys() == set(type(Settings().health).__struct_fields__)
    assert _names(config["resilience"]) == _names_of(Settings().resilience)
    assert _names(config["admission"]) == _names_of(Settings().admission)
    caches = config["tokenizer_caches"]["properties"]
    assert caches.keys() == set(type(Settings().tokenizer_caches).__struct_fields__)
    assert config["policy"]["enum"] == list(get_args(PolicyName))
    external = properties["replicas"]["properties"]["external"]["items"]["properties"]
    assert external.keys() == set(ReplicaSettings.__struct_fields__)
    assert external["dialect"]["enum"] == list(get_args(DialectName))


def test_none_switches_a_limit_off_and_an_empty_tokenizer_means_none(chart: helm_python.Chart) -> None:
    settings = settings_from(gateway_yaml(render(chart, CASES["limits"])), source="gateway.yaml")
    assert settings.limits.silence_s is None
    assert settings.limits.first_byte_s is None
    assert settings.limits.drain_s == 299.5
    assert settings.limits.body_bytes == 2**31
    assert settings.tokenizer is None
    assert settings.admin_networks == ("10.0.0.0/8", "fd00::/8")


def test_own_replicas_are_listed_by_the_names_their_pods_get(chart: helm_python.Chart) -> None:
    objects = render(chart, CASES["own-and-external"])
    settings = settings_from(gateway_yaml(objects), source="gateway.yaml")
    (replicas,) = of_kind(objects, "StatefulSet")
    ports = {port["name"]: port["containerPort"] for port in container(replicas)["ports"]}
    name, service = replicas["metadata"]["name"], replicas["spec"]["serviceName"]
    for i in range(replicas["spec"]["replicas"]):
        own = settings.replicas[i]
        host = f"{name}-{i}.{service}"
        assert own.name == f"{name}-{i}"
        assert own.url == f"http://{host}:{ports['http']}"
        assert own.events == f"tcp://{host}:{ports['events']}"
        assert own.replay == f"tcp://{host}:{ports['replay']}"
        assert own.dialect == "trunkline"
    assert settings.replicas[3] == msgspec.convert(dict(EXTERNAL), ReplicaSettings)


def test_own_replicas_listen_where_the_gateway_looks(objects: list[Object]) -> None:
    for replicas in of_kind(objects, "StatefulSet"):
        only = container(replicas)
        ports = {port["name"]: str(port["containerPort"]) for port in only["ports"]}
        args = options(only)
        assert args["--port"] == ports["http"]
        assert args["--events"] == f"tcp://*:{ports['events']}"
        assert args["--replay"] == f"tcp://*:{ports['replay']}"


def test_client_keys_are_read_from_where_they_are_mounted(chart: helm_python.Chart) -> None:
    for case in ("secrets-inline", "secrets-by-reference"):
        objects = render(chart, CASES[case])
        path = gateway_yaml(objects)["api_keys_file"]
        spec = gateway(objects)["spec"]["template"]["spec"]
        (volume,) = [v for v in spec["volumes"] if v["name"] == "keys"]
        (mount,) = [m for m in container(gateway(objects))["volumeMounts"] if m["name"] == "keys"]
        assert path == f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
    assert "api_keys_file" not in gateway_yaml(render(chart, {}))


def test_the_gateway_is_told_the_file_it_mounts(objects: list[Object]) -> None:
    only = container(gateway(objects))
    (mount,) = [m for m in only["volumeMounts"] if m["name"] == "config"]
    assert only["command"] + only["args"] == ["trunkline", "serve", "--config", f"{mount['mountPath']}/gateway.yaml"]


@pytest.mark.parametrize(("module", "workload"), [("gateway.cli", "Deployment"), ("replicas.cli", "StatefulSet")])
def test_the_commands_know_the_options_they_are_given(chart: helm_python.Chart, module: str, workload: str) -> None:
    command = get_command(importlib.import_module(module).app)
    (only,) = of_kind(render(chart, CASES["gpu-and-persistent-cache"]), workload)
    name, *_ = container(only)["args"]
    if isinstance(command, TyperGroup):
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert options(container(only)).keys() <= known


def test_the_embedded_tokenizer_is_fetched_before_the_gateway_starts(chart: helm_python.Chart) -> None:
    """The gateway only reads the folder: nothing but the init container puts it into an empty cache."""

    def init(values: Mapping[str, Any]) -> list[Object]:
        found: list[Object] = gateway(render(chart, values))["spec"]["template"]["spec"].get("initContainers", [])
        return found

    (fetch,) = init({})
    assert fetch["command"] + fetch["args"] == ["trunkline", "model", "fetch", "smollm2"]
    assert fetch["image"].startswith("trunkline/replica:")
    assert {"name": "cache", "mountPath": "/cache"} in fetch["volumeMounts"]
    assert init({"config": {"tokenizer": "/models/other"}}) == []
    assert init({"gateway": {"cache": {"fetchTokenizer": False}}}) == []


def test_values_are_plain_enough_for_two_readers() -> None:
    """Helm and this test read the same numbers: no octal, no exponent, no yes/no."""
    text = (FOLDER / "values.yaml").read_text(encoding="utf-8")
    with helm_python.Chart.load(str(FOLDER)) as chart:
        assert chart.values == yaml.safe_load(text)
