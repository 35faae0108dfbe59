"""What clients ask for, and how many of such requests a fleet of fake engines can answer in a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from statistics import mean
from typing import Any

from replicas.mock.cost import StepTimes

MODEL = "m"
TIMES = StepTimes(prefill_tokens_per_s=60_000.0, decode_s=0.01, sequence_s=0.0004)
MAX_RUNNING = 16
_WORDS = ("cache", "engine", "prefix", "token", "answer", "gateway", "prompt", "fleet", "the", "of", "and", "which", "sooner")
_FAMILIES, _FAMILY_BYTES = 24, 400
_SIZES = ((0.80, 200), (0.15, 2_000), (0.05, 24_000))  # share of requests, bytes of their own text


class Manner(Enum):
    """What a client does with its request."""

    WAITS = "waits"
    SLOW = "slow"  # reads nothing for a while, then all
    DEAF = "deaf"  # never reads
    LEAVES_SENDING = "leaves_sending"  # in mid-body
    LEAVES_WAITING = "leaves_waiting"  # before the answer's head
    LEAVES_READING = "leaves_reading"  # in mid-answer


_MANNERS = {
    Manner.WAITS: 0.70,
    Manner.SLOW: 0.04,
    Manner.DEAF: 0.01,
    Manner.LEAVES_SENDING: 0.05,
    Manner.LEAVES_WAITING: 0.10,
    Manner.LEAVES_READING: 0.10,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. own_tokens: of the prompt, that no other begins with. resets: it leaves by RST, else in order."""

    body: dict[str, Any]
    own_tokens: int
    output_tokens: int
    manner: Manner
    resets: bool
    stays_s: float

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        return bool(self.body["stream"])


class Demand:
    """Draws requests: a family's system prompt, a text of its own, of mixed sizes and manners."""

    def __init__(self, seed: int) -> None:
        shared = Random(3)  # the same families for every seed
        self._families = [_text(shared, _FAMILY_BYTES) for _ in range(_FAMILIES)]
        self._random = Random(seed)

    def draw(self) -> Ask:
        """One more."""
        chance = self._random
        size = chance.choices([size for _, size in _SIZES], [share for share, _ in _SIZES])[0]
        manner = chance.choices(list(_MANNERS), list(_MANNERS.values()))[0]
        stream = chance.random() < 0.6 or manner is Manner.DEAF
        # Whom nobody reads has to have more to say than sockets hold.
        output = 4_000 if manner is Manner.DEAF else chance.randint(4, 80)
        own = _text(chance, size)
        messages = [{"role": "system", "content": chance.choice(self._families)}, {"role": "user", "content": own}]
        body = {"model": MODEL, "messages": messages, "max_tokens": output, "ignore_eos": True, "stream": stream}
        return Ask(body, len(own), output, manner, chance.random() < 0.5, chance.uniform(0.0, 1.0))


def capacity_per_s(asks: Sequence[Ask], replicas: int) -> float:
    """Requests like these that engines answer in a second, by their cost model and with full batches.

    Shared starts of prompts cost nothing; one token is one byte.
    """
    step_s = TIMES.step_s(prefill_tokens=0, sequences=MAX_RUNNING)
    stay = [each for each in asks if each.manner in (Manner.WAITS, Manner.SLOW)]  # the others end early, or are cut
    cost_s = [each.own_tokens / TIMES.prefill_tokens_per_s + each.output_tokens * step_s / MAX_RUNNING for each in stay]
    return replicas / (mean(cost_s) * len(stay) / len(asks))


def _text(chance: Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        words.append(f"{chance.choice(_WORDS)}{chance.randrange(1000)}")
        length += len(words[-1]) + 1
    return " ".join(words)
