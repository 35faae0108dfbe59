"""How requests name adapters, by dialect."""

from __future__ import annotations

import pytest

from replicas.errors import UnknownModel
from replicas.mock.engine import MockEngine
from replicas.mock.settings import Dialect, MockSettings
from replicas.mock.tokens import ByteCodec


def engine(dialect: Dialect) -> MockEngine:
    return MockEngine(0, MockSettings(model="base", dialect=dialect, adapters=("tuned",)), ByteCodec())


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_an_adapter_is_named_like_a_model(dialect: Dialect) -> None:
    it = engine(dialect)
    assert [it.adapter_of(name) for name in (None, "", "base", "tuned")] == [None, None, None, "tuned"]
    with pytest.raises(UnknownModel, match="other"):
        it.adapter_of("other")


async def test_behind_its_base_only_sglang_knows_it() -> None:
    assert engine("sglang").adapter_of("base:tuned") == "tuned"
    with pytest.raises(UnknownModel):
        engine("vllm").adapter_of("base:tuned")
