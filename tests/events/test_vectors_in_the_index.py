"""Recorded messages of real engines, applied: what a prompt is credited with afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from events.decode import decode
from events.decode.polled import PolledReader
from radix import Index, Namespace, Tier
from tests.events.recorded import RECORDED, polled

BASE = Namespace("m")


class View:
    """One holder fed with recorded messages."""

    def __init__(self, *, counting: bool = True) -> None:
        self.index = Index()
        self.holder = self.index.holder("r", 0, model="m", counting=counting)

    def feed(self, *names: str) -> View:
        for name in names:
            line = next(line for line in RECORDED if line["id"] == name)
            self.index.apply(self.holder, decode(bytes.fromhex(line["payload_hex"]), 0))
        return self

    def tokens(self, prompt: object, namespace: Namespace = BASE) -> list[int]:
        """Matched tokens per tier."""
        return self.index.match(namespace, np.array(prompt, np.int32)).depth[self.holder].tolist()


@pytest.mark.parametrize(
    ("name", "prompt", "namespace", "want"),
    [
        ("v0900-stored", range(10, 50), BASE, [32] * 4),
        ("v0141-lora-name", range(5, 30), Namespace("m", "sql-adapter"), [16] * 4),
        ("v0191-extra-salt-lora", range(5, 60), Namespace("m", "ad", "tenant-7"), [32] * 4),
        ("v0191-extra-mm-offset", range(5, 60), Namespace("m", None, None, (b"imgsha",)), [32] * 4),
        ("v0230-two-groups", range(20), BASE, [16] * 4),  # a window that covers the whole prompt
        ("v0260-cpu-fs-medium", range(20), BASE, [0, 16, 16, 16]),
        ("v0320-swa-holes", range(16, 90), BASE, [0] * 4),
        ("v0320-placeholder-cpu", range(20), BASE, [0] * 4),
        ("v0320-embeds", range(20), BASE, [0] * 4),
        ("v0330-lookahead", range(40), BASE, [32] * 4),
        ("v0330-lookahead", range(32), BASE, [16] * 4),  # the last block's lookahead is not in the prompt
        ("s049-page1", [9, 10], BASE, [0] * 4),  # its hashes name no prefix, and its root is not nil
        ("s0518-salt-metadata", range(20), Namespace("m", None, "tenant-1"), [16] * 4),
        ("s0523-bigram", range(1, 9), BASE, [4] * 4),
        ("s0523-bigram", range(1, 5), BASE, [0] * 4),
        ("t-native-stored", range(70), BASE, [64] * 4),
        ("t-dynamo-republish", range(70), Namespace("m", None, "t1"), [32] * 4),
        ("t-dynamo-republish", range(70), Namespace("m", None, "t1", (b"12345",)), [64] * 4),
    ],
)
def test_a_message_credits_exactly_its_prompt(name: str, prompt: Sequence[int], namespace: Namespace, want: list[int]) -> None:
    """FC-18, FC-20, edge cases 22, 23, 28, 29, 30, 31: and no other prompt."""
    view = View().feed(name)
    assert view.tokens(prompt, namespace) == want
    if namespace is not BASE:
        assert view.tokens(prompt) == [0] * 4


def test_a_block_moves_between_the_tiers_of_sglang() -> None:
    """Edge cases 17, 19: written through, evicted from the device, loaded back, evicted from the host."""
    view = View(counting=False).feed("s0523-dup-store", "s0523-hicache-writethrough")
    steps = ["s0523-hicache-evict-gpu", "s0523-hicache-loadback", "s0523-hicache-evict-cpu", "s0523-cleared"]
    told = [view.feed(step).tokens(range(130))[:2] for step in steps]
    assert told == [[0, 128], [128, 128], [128, 128], [0, 0]]


def test_what_a_polled_answer_tells_is_applied_up_to_the_loss() -> None:
    """TensorRT-LLM: on the host after the change of level, gone after the missing number."""
    view = View(counting=False)
    (message,) = PolledReader(4).read(polled())
    batch = message.batch()
    view.index.apply(view.holder, type(batch)(0, 0, 0.0, batch.events[:3]))
    assert view.tokens(range(8)) == [0, 4, 4, 4]
    view.index.apply(view.holder, type(batch)(0, 0, 0.0, batch.events[3:]))
    assert view.tokens(range(8)) == [0] * len(Tier)
    assert view.index.stats().blocks == 0
