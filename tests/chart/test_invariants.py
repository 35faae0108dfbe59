"""What no schema checks: labels that must meet, ports that must exist, time that must suffice."""

from __future__ import annotations

import math
import re

from tests.chart.rendering import (
    Object,
    container,
    gateway,
    gateway_yaml,
    of_kind,
    options,
    pod_labels,
    selects,
    walk,
    workloads,
)

QUANTITY = re.compile(r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$")
BYTES = {"Mi": 2**20, "Gi": 2**30}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def test_workloads_select_their_own_pods_only(objects: list[Object]) -> None:
    for workload in workloads(objects):
        match = workload["spec"]["selector"]["matchLabels"]
        taken = [w["kind"] for w in workloads(objects) if selects(match, pod_labels(w))]
        assert taken == [workload["kind"]]


def test_services_reach_one_workload_by_ports_it_has(objects: list[Object]) -> None:
    for service in of_kind(objects, "Service"):
        behind = [w for w in workloads(objects) if selects(service["spec"]["selector"], pod_labels(w))]
        assert len(behind) == 1
        ports = {port["name"] for port in container(behind[0])["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_a_stateful_set_names_its_headless_service(objects: list[Object]) -> None:
    for workload in of_kind(objects, "StatefulSet"):
        (service,) = [s for s in of_kind(objects, "Service") if s["metadata"]["name"] == workload["spec"]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True


def test_budgets_spread_rules_and_policies_select_pods(objects: list[Object]) -> None:
    selectors = [budget["spec"]["selector"] for budget in of_kind(objects, "PodDisruptionBudget")]
    selectors += [policy["spec"]["podSelector"] for policy in of_kind(objects, "NetworkPolicy")]
    for selector in selectors:
        assert sum(selects(selector["matchLabels"], pod_labels(w)) for w in workloads(objects)) == 1
    for workload in workloads(objects):
        for rule in workload["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            assert selects(rule["labelSelector"]["matchLabels"], pod_labels(workload))


def test_a_single_pod_has_no_disruption_budget(objects: list[Object]) -> None:
    """It would block the drain of its node for ever."""
    for budget in of_kind(objects, "PodDisruptionBudget"):
        (workload,) = [w for w in workloads(objects) if selects(budget["spec"]["selector"]["matchLabels"], pod_labels(w))]
        assert workload["spec"]["replicas"] > 1
        assert budget["spec"]["maxUnavailable"] == 1


def test_probes_use_ports_that_exist(objects: list[Object]) -> None:
    for workload in workloads(objects):
        only = container(workload)
        ports = {port["name"] for port in only["ports"]}
        for probe in PROBES:
            action = only[probe].get("httpGet") or only[probe]["tcpSocket"]
            assert action["port"] in ports


def test_the_gateways_probes_mean_three_things(objects: list[Object]) -> None:
    only = container(gateway(objects))
    asked = [only[probe].get("httpGet", {}).get("path", "tcp") + ":" + _port(only, probe) for probe in PROBES]
    assert asked == ["tcp:http", "/livez:control", "/readyz:control"]
    listen = gateway_yaml(objects)["listen"]
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    assert (listen["port"], listen["control_port"]) == (ports["http"], ports["control"])
    assert (listen["host"], listen["control_host"]) == ("0.0.0.0", "0.0.0.0"), "the kubelet asks from outside the pod"


def _port(only: Object, probe: str) -> str:
    action = only[probe].get("httpGet") or only[probe]["tcpSocket"]
    name: str = action["port"]
    return name


def test_there_is_time_to_leave_the_endpoints_and_to_drain(objects: list[Object]) -> None:
    """FC-57: streams within the drain limit end by themselves, not by the kill."""
    spec = gateway(objects)["spec"]["template"]["spec"]
    sleep = container(gateway(objects))["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = gateway_yaml(objects)["limits"]["drain_s"]
    assert spec["terminationGracePeriodSeconds"] >= sleep + math.ceil(drain_s) + 5


def test_replicas_have_time_to_drain_too(objects: list[Object]) -> None:
    for replicas in of_kind(objects, "StatefulSet"):
        drain_s = float(options(container(replicas))["--drain"])
        assert replicas["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= drain_s + 5


def test_pods_run_without_privileges(objects: list[Object]) -> None:
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in spec.get("initContainers", []) + spec["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_mounts_have_volumes_and_the_scratch_places_are_writable(objects: list[Object]) -> None:
    for workload in workloads(objects):
        spec = workload["spec"]
        volumes = {v["name"] for v in spec["template"]["spec"]["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
        mounts = container(workload)["volumeMounts"]
        assert {mount["name"] for mount in mounts} == volumes
        writable = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
        environment = {entry["name"]: entry.get("value") for entry in container(workload)["env"]}
        assert {"/tmp", environment["TRUNKLINE_CACHE"], environment["HOME"]} <= writable


def test_quantities_parse(objects: list[Object]) -> None:
    for item in objects:
        for path, value in walk(item):
            if re.search(r"\.(limits|requests)\.|\.sizeLimit$", path):
                assert QUANTITY.match(str(value)), f"{path}: {value}"


def test_the_gateways_memory_covers_the_bodies_it_may_hold(objects: list[Object]) -> None:
    limit = container(gateway(objects))["resources"]["limits"]["memory"]
    number, unit = int(limit[:-2]), limit[-2:]
    assert number * BYTES[unit] >= gateway_yaml(objects)["limits"]["bodies_total_bytes"] + 512 * 2**20


def test_secrets_and_configs_a_pod_names_are_made_or_were_promised(objects: list[Object]) -> None:
    made = {(item["kind"], item["metadata"]["name"]) for item in objects}
    promised = {("Secret", "clients"), ("Secret", "admin")}
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        named = {("Secret", v["secret"]["secretName"]) for v in spec["volumes"] if "secret" in v}
        named |= {("ConfigMap", v["configMap"]["name"]) for v in spec["volumes"] if "configMap" in v}
        for entry in container(workload)["env"]:
            if "secretKeyRef" in entry.get("valueFrom", {}):
                named.add(("Secret", entry["valueFrom"]["secretKeyRef"]["name"]))
        assert named <= made | promised


def test_only_the_gateway_may_listen_to_events(objects: list[Object]) -> None:
    """Events carry the tokens of prompts in clear."""
    gateway_labels = pod_labels(gateway(objects))
    for policy in of_kind(objects, "NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            if {port["port"] for port in rule["ports"]} & {"events", "replay"}:
                (peer,) = rule["from"]
                assert peer.keys() == {"podSelector"}
                assert selects(peer["podSelector"]["matchLabels"], gateway_labels)


def test_own_replicas_are_covered_by_a_policy_unless_told_otherwise(objects: list[Object]) -> None:
    policies = of_kind(objects, "NetworkPolicy")
    for workload in of_kind(objects, "StatefulSet") if policies else []:
        assert any(selects(p["spec"]["podSelector"]["matchLabels"], pod_labels(workload)) for p in policies)


def test_policies_name_ports_of_the_pods_they_select(objects: list[Object]) -> None:
    for policy in of_kind(objects, "NetworkPolicy"):
        match = policy["spec"]["podSelector"]["matchLabels"]
        (workload,) = [w for w in workloads(objects) if selects(match, pod_labels(w))]
        ports = {port["name"] for port in container(workload)["ports"]}
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= ports
