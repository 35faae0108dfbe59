"""Wrong values are refused before anything is applied, and the message says where."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest

from tests.chart.rendering import render

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"gatway": {}}, "at '': additional properties 'gatway'"),
    ({"gateway": {"replicaCount": 0}}, "at '/gateway/replicaCount': minimum"),
    ({"gateway": {"replicaCount": "two"}}, "at '/gateway/replicaCount': got string"),
    ({"gateway": {"image": {"tag": "a b"}}}, "at '/gateway/image/tag'"),
    ({"gateway": {"image": {"digest": "md5:0"}}}, "at '/gateway/image/digest'"),
    ({"gateway": {"image": {"pullPolicy": "Sometimes"}}}, "at '/gateway/image/pullPolicy'"),
    ({"gateway": {"resources": {"limits": {"memory": "2 GB"}}}}, "at '/gateway/resources/limits/memory'"),
    ({"gateway": {"resources": {"limit": {}}}}, "at '/gateway/resources': additional properties 'limit'"),
    ({"gateway": {"podLabels": {"app.kubernetes.io/name": "x"}}}, "at '/gateway/podLabels/app.kubernetes.io"),
    ({"gateway": {"extraEnv": [{"name": "A-B", "value": "1"}]}}, "at '/gateway/extraEnv/0/name'"),
    ({"gateway": {"extraEnv": [{"name": "A", "value": 1}]}}, "at '/gateway/extraEnv/0/value'"),
    ({"gateway": {"livenessProbe": {"httpGet": {}}}}, "at '/gateway/livenessProbe': additional properties 'httpGet'"),
    ({"gateway": {"topologySpread": [{"topologyKey": "zone"}]}}, "at '/gateway/topologySpread/0': missing properties"),
    ({"config": {"policy": "fastest"}}, "at '/config/policy'"),
    ({"config": {"polciy": "cost"}}, "at '/config': additional properties 'polciy'"),
    ({"config": {"listen": {"port": 1}}}, "at '/config': additional properties 'listen'"),
    ({"config": {"limits": {"drain_s": -1}}}, "at '/config/limits/drain_s': exclusiveMinimum"),
    ({"config": {"limits": {"drain_s": "none"}}}, "at '/config/limits/drain_s': got string"),
    ({"config": {"limits": {"silence_s": "never"}}}, "at '/config/limits/silence_s'"),
    ({"config": {"limits": {"body_bytes": 1.5}}}, "at '/config/limits/body_bytes'"),
    ({"config": {"health": {"interval_s": 0}}}, "at '/config/health/interval_s'"),
    ({"config": {"admin_networks": ["everywhere"]}}, "at '/config/admin_networks/0'"),
    ({"config": {"log_level": "trace"}}, "at '/config/log_level'"),
    ({"service": {"port": 70000}}, "at '/service/port': maximum"),
    ({"service": {"type": "ExternalName"}}, "at '/service/type'"),
    ({"auth": {"apiKeys": {"lines": ["alice:secret"]}}}, "at '/auth/apiKeys/lines/0'"),
    ({"auth": {"adminToken": {"value": "short"}}}, "at '/auth/adminToken/value'"),
    ({"replicas": {"external": [{"name": "a"}]}}, "at '/replicas/external/0': missing property 'url'"),
    ({"replicas": {"external": [{"url": "engine:8000"}]}}, "at '/replicas/external/0/url'"),
    ({"replicas": {"external": [{"url": "http://user:pw@engine:8000"}]}}, "at '/replicas/external/0/url'"),
    ({"replicas": {"external": [{"url": "http://a:1", "events": "a:5557"}]}}, "at '/replicas/external/0/events'"),
    ({"replicas": {"external": [{"url": "http://a:1", "dialect": "llama"}]}}, "at '/replicas/external/0/dialect'"),
    ({"replicas": {"own": {"count": 0}}}, "at '/replicas/own/count': minimum"),
    ({"replicas": {"own": {"gpu": {"count": 0.5}}}}, "at '/replicas/own/gpu/count'"),
    ({"replicas": {"own": {"cache": {"size": "big"}}}}, "at '/replicas/own/cache/size'"),
    ({"networkPolicy": {"clientsFrom": [{"podSelectr": {}}]}}, "at '/networkPolicy/clientsFrom/0'"),
    ({"monitoring": {"serviceMonitor": {"interval": "15"}}}, "at '/monitoring/serviceMonitor/interval'"),
    ({"fullnameOverride": "Upper"}, "at '/fullnameOverride'"),
    ({"extraObjects": [{"kind": "ConfigMap"}]}, "at '/extraObjects/0': missing properties"),
]
REFUSED_TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"replicas": {"own": {"enabled": False}}}, "at '/replicas': own.enabled is false and external is empty"),
    (
        {"replicas": {"external": [{"url": "http://a:1", "name": "x"}, {"url": "http://b:1", "name": "x"}]}},
        "at '/replicas/external/1': the name \"x\" is used twice",
    ),
    ({"replicas": {"own": {"ports": {"replay": 5557}}}}, "at '/replicas/own/ports': http, events and replay must differ"),
    (
        {"auth": {"adminToken": {"existingSecret": "a", "value": "0123456789abcdef"}}},
        "at '/auth/adminToken': give existingSecret or the value itself",
    ),
    (
        {"auth": {"apiKeys": {"existingSecret": "a", "lines": [f"a:{'0' * 64}"]}}},
        "at '/auth/apiKeys': give existingSecret or the value itself",
    ),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wrong_value_is_refused_by_the_schema(chart: helm_python.Chart, values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        render(chart, values)
    assert message in str(refusal.value)


@pytest.mark.parametrize(("values", "message"), REFUSED_TOGETHER, ids=[message for _, message in REFUSED_TOGETHER])
def test_values_that_contradict_each_other_are_refused(chart: helm_python.Chart, values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        render(chart, values)
    assert message in str(refusal.value)


def test_every_object_of_the_schema_is_closed(chart: helm_python.Chart) -> None:
    """A typing error in any name the chart owns is refused, not ignored."""
    open_objects = list(_open_objects(chart.schema, ""))
    assert open_objects == []


def _open_objects(schema: object, path: str) -> list[str]:
    if isinstance(schema, list):
        return [bad for i, part in enumerate(schema) for bad in _open_objects(part, f"{path}/{i}")]
    if not isinstance(schema, dict):
        return []
    bad = [bad for key, part in schema.items() for bad in _open_objects(part, f"{path}/{key}")]
    if "properties" in schema and schema.get("type") == "object" and "additionalProperties" not in schema:
        bad.append(path)
    return bad
