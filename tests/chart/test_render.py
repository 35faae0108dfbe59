"""The chart lints, and every case is valid for the oldest and the newest Kubernetes it names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from tests.chart.cases import CASES
from tests.chart.rendering import FOLDER, ROOT, Object, container, gateway, named, of_kind, pod_labels, render, workloads

OLDEST, NEWEST = "1.30", "1.37"
DEFINED_ELSEWHERE = {"ServiceMonitor"}  # test_service_monitor.py


@cache
def is_valid(text: str, version: str) -> bool:
    """Strict schema check; the same text is checked once. Raises the validator's error otherwise."""
    kubernetes_validate.validate(yaml.safe_load(text), version, strict=True)
    return True


@pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
def test_lint_finds_no_error(values: Mapping[str, Any]) -> None:
    report = helm_python.lint(str(FOLDER), dict(values), strict=True, kube_version=f"v{OLDEST}.0")
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_fits_the_strict_schema(objects: list[Object], version: str) -> None:
    for item in objects:
        if item["kind"] not in DEFINED_ELSEWHERE:
            assert is_valid(yaml.safe_dump(item), version)


def test_strict_schemas_do_refuse() -> None:
    """The check above can fail: an unknown field is an error."""
    bad = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        is_valid(yaml.safe_dump(bad), NEWEST)


def test_chart_metadata_names_the_oldest_version_and_the_product(chart: helm_python.Chart) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert chart.metadata["kubeVersion"] == f">={OLDEST}.0-0"
    assert f'version = "{chart.metadata["appVersion"]}"' in project


def test_object_names_are_unique_and_short(objects: list[Object]) -> None:
    """A StatefulSet's name becomes a label of at most 63 characters with 11 of a hash; pods add an ordinal."""
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    assert all(len(name) <= (52 if kind == "StatefulSet" else 63) for kind, name in names)


def test_images_default_to_the_version_of_the_product(chart: helm_python.Chart) -> None:
    objects = render(chart, {})
    version = chart.metadata["appVersion"]
    images = [container(w)["image"] for w in workloads(objects)]
    assert images == [f"trunkline/gateway:{version}", f"trunkline/replica:{version}"]


def test_a_digest_wins_over_a_tag(chart: helm_python.Chart) -> None:
    digest = "sha256:" + "0" * 64
    objects = render(chart, {"gateway": {"image": {"tag": "main", "digest": digest}}})
    assert container(gateway(objects))["image"] == f"trunkline/gateway@{digest}"


def test_switched_off_parts_leave_nothing(chart: helm_python.Chart) -> None:
    off = {
        "replicas": {"own": {"enabled": False}, "external": [{"url": "http://a:1"}]},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False},
    }
    kinds = {item["kind"] for item in render(chart, off)}
    assert kinds == {"ConfigMap", "Deployment", "Service"}


def test_a_change_of_configuration_restarts_the_gateway_and_a_new_chart_alone_does_not(chart: helm_python.Chart) -> None:
    before, after = (gateway(render(chart, {"config": {"policy": p}}))["spec"]["template"] for p in ("cost", "round_robin"))
    assert before["metadata"]["annotations"]["checksum/config"] != after["metadata"]["annotations"]["checksum/config"]
    assert before["spec"] == after["spec"]
    for workload in workloads(render(chart, {})):
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & pod_labels(workload).keys()


def test_a_gpu_is_a_limit_beside_the_others(chart: helm_python.Chart) -> None:
    objects = render(chart, {"replicas": {"own": {"gpu": {"count": 2, "resource": "amd.com/gpu"}}}})
    (replica,) = of_kind(objects, "StatefulSet")
    assert container(replica)["resources"]["limits"] == {"amd.com/gpu": "2", "memory": "4Gi"}


def test_notes_warn_of_what_is_open(chart: helm_python.Chart) -> None:
    def notes(values: dict[str, Any]) -> str:
        text: str = chart.render(values, name="demo", namespace="serving")["trunkline/templates/NOTES.txt"]
        return text

    assert "No client key is asked for" in notes({})
    assert "No client key" not in notes(dict(CASES["secrets-inline"]))
    assert "any pod may listen" in notes({"networkPolicy": {"enabled": False}})
    assert "Prometheus can not reach" in notes({"monitoring": {"serviceMonitor": {"enabled": True}}})


def test_inline_secrets_appear_in_secrets_only(chart: helm_python.Chart) -> None:
    """FC-59: no key in a ConfigMap, an argument or the notes."""
    values = {
        **CASES["secrets-inline"],
        "replicas": {"external": [{"url": "http://a:1", "api_key": "engine-key-0123"}]},
    }
    texts = chart.render(values, name="demo", namespace="serving")
    for name, text in texts.items():
        for item in [None] if name.endswith("NOTES.txt") else yaml.safe_load_all(text):
            if item is None or item["kind"] != "Secret":
                shown = text if item is None else yaml.safe_dump(item)
                assert "engine-key-0123" not in shown
                assert "0123456789abcdef" not in shown
    auth = named(render(chart, values), "Secret", "demo-trunkline-auth")
    assert auth["stringData"]["admin-token"] == "0123456789abcdef"
    assert auth["stringData"]["api-keys"].splitlines() == values["auth"]["apiKeys"]["lines"]
