"""The chart, loaded once, and each case rendered once."""

from __future__ import annotations

from collections.abc import Iterator

import helm_python
import pytest

from tests.chart.cases import CASES
from tests.chart.rendering import FOLDER, Object, render


@pytest.fixture(scope="session")
def chart() -> Iterator[helm_python.Chart]:
    """The chart as Helm loads it."""
    with helm_python.Chart.load(str(FOLDER)) as loaded:
        yield loaded


@pytest.fixture(scope="session", params=list(CASES.values()), ids=list(CASES))
def objects(chart: helm_python.Chart, request: pytest.FixtureRequest) -> list[Object]:
    """What the chart makes of one case; nothing may change it."""
    return render(chart, request.param)
