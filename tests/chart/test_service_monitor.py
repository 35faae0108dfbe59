"""ServiceMonitors have only fields the operator knows, and find a Service with the port they name."""

from __future__ import annotations

import re

import helm_python
import pytest

from tests.chart.cases import CASES
from tests.chart.rendering import Object, of_kind, render, selects

# The fields of monitoring.coreos.com/v1 that this chart may use; anything else is dropped silently by the API server.
SPEC = {"selector", "endpoints", "namespaceSelector", "jobLabel"}
ENDPOINT = {"port", "path", "scheme", "interval", "scrapeTimeout", "honorLabels", "relabelings", "metricRelabelings"}
RELABEL = {"sourceLabels", "separator", "targetLabel", "regex", "modulus", "replacement", "action"}
DURATION = re.compile(r"^(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$")


@pytest.fixture
def monitored(chart: helm_python.Chart) -> list[Object]:
    """The chart with monitoring on."""
    return render(chart, CASES["monitoring"])


def test_monitors_appear_only_when_asked_for(chart: helm_python.Chart, monitored: list[Object]) -> None:
    assert of_kind(render(chart, {}), "ServiceMonitor") == []
    names = {monitor["metadata"]["name"] for monitor in of_kind(monitored, "ServiceMonitor")}
    assert names == {"demo-trunkline", "demo-trunkline-replica"}


def test_monitors_have_known_fields(monitored: list[Object]) -> None:
    for monitor in of_kind(monitored, "ServiceMonitor"):
        assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"].keys() <= SPEC
        for endpoint in monitor["spec"]["endpoints"]:
            assert endpoint.keys() <= ENDPOINT
            assert DURATION.match(endpoint["interval"])
            assert DURATION.match(endpoint["scrapeTimeout"])
            for rule in endpoint["relabelings"] + endpoint["metricRelabelings"]:
                assert rule.keys() <= RELABEL


def test_monitors_find_exactly_one_service_with_their_port(monitored: list[Object]) -> None:
    for monitor in of_kind(monitored, "ServiceMonitor"):
        match = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [s for s in of_kind(monitored, "Service") if selects(match, s["metadata"]["labels"])]
        ports = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_prometheus_is_let_in_to_the_ports_it_scrapes(monitored: list[Object]) -> None:
    let_in = {
        port["port"]
        for policy in of_kind(monitored, "NetworkPolicy")
        for rule in policy["spec"]["ingress"]
        if any("namespaceSelector" in peer for peer in rule.get("from", []))
        for port in rule["ports"]
    }
    assert let_in == {"control", "http"}
