"""Render the chart with the Helm SDK and find things in what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "helm"
RELEASE = "demo"

Object = dict[str, Any]


def render(chart: helm_python.Chart, values: Mapping[str, Any]) -> list[Object]:
    """All Kubernetes objects of the chart under `values`, in file order."""
    texts = chart.render(dict(values), name=RELEASE, namespace="serving")
    manifests = [text for name, text in sorted(texts.items()) if not name.endswith("NOTES.txt")]
    return [item for text in manifests for item in yaml.safe_load_all(text) if item is not None]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """The objects of one kind."""
    return [item for item in objects if item["kind"] == kind]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of this kind and name."""
    found = [item for item in of_kind(objects, kind) if item["metadata"]["name"] == name]
    assert len(found) == 1, f"{len(found)} {kind} named {name}"
    return found[0]


def workloads(objects: list[Object]) -> list[Object]:
    """What makes pods."""
    return of_kind(objects, "Deployment") + of_kind(objects, "StatefulSet")


def pod_labels(workload: Object) -> dict[str, str]:
    """The labels its pods carry."""
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def container(workload: Object) -> Object:
    """The only container of its pods."""
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    result: Object = only
    return result


def gateway(objects: list[Object]) -> Object:
    """The gateway's Deployment."""
    (only,) = of_kind(objects, "Deployment")
    return only


def gateway_yaml(objects: list[Object]) -> Object:
    """The YAML file the gateway reads, from the ConfigMap or Secret its pod mounts."""
    volumes = {volume["name"]: volume for volume in gateway(objects)["spec"]["template"]["spec"]["volumes"]}
    source = volumes["config"]
    if "secret" in source:
        text = named(objects, "Secret", source["secret"]["secretName"])["stringData"]["gateway.yaml"]
    else:
        text = named(objects, "ConfigMap", source["configMap"]["name"])["data"]["gateway.yaml"]
    data: Object = yaml.safe_load(text)
    return data


def options(only: Object) -> dict[str, str]:
    """`--name value` pairs of a container's arguments, behind the command's own name."""
    return dict(zip(only["args"][1::2], only["args"][2::2], strict=True))


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether matchLabels `selector` take something with `labels`; an empty selector takes all and is never meant here."""
    return bool(selector) and selector.items() <= labels.items()


def walk(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every (path, leaf) of nested mappings and lists."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from walk(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from walk(part, f"{path}[{i}]")
    else:
        yield path, value
