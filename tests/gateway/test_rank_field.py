"""Which rank of a replica a request is for, as engines want to be told."""

from __future__ import annotations

import pytest

from tests.fakes.client import CHAT, RawClient, post
from tests.fakes.dataplane import running
from tests.fakes.engine import FakeEngine, always, answer
from tests.fakes.placer import FakePlacer, FakeTicket, replica_at


class _RankOne(FakePlacer):
    def place(self, *args: object) -> FakeTicket:
        ticket = super().place(*args)  # type: ignore[arg-type]
        ticket.rank = 1
        return ticket


@pytest.mark.parametrize(("holders", "values"), [([4], []), ([4, 7], [b"1"])])
async def test_the_chosen_rank_goes_to_an_engine_that_has_several(holders: list[int], values: list[bytes]) -> None:
    """FC-21: in the field that vLLM and SGLang read."""
    async with FakeEngine(always(answer(b"{}"))) as engine:
        replica = replica_at(engine.port)
        replica.holders = holders
        async with running(_RankOne([replica])) as it, RawClient(it.port) as client:
            await client.send(post(CHAT))
            assert (await client.answer()).status == 200
        assert engine.calls[0].values(b"x-data-parallel-rank") == values
