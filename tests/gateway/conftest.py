"""Tests that start a data plane run on uvloop, as the plane does in production."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    module = item.getparent(pytest.Module)
    starts_a_plane = module is not None and hasattr(module.obj, "running")
    return {"uvloop": uvloop.new_event_loop} if starts_a_plane else {"asyncio": asyncio.new_event_loop}
