"""All that wait in this process, in whatever line: how many, how many tokens, whose, and who has to go where there is no room.

The bounds hold for requests and for tokens, the arriving request included (FC-52). No clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum

from gateway.admission.line import Waiting

_WINDOW = 64  # departures that tell how fast the line drains
RETRY_LEAST_S, RETRY_MOST_S = 1.0, 60.0


class Verdict(Enum):
    """Why a request can not wait."""

    FULL = "line_full"
    OVER_SHARE = "over_fair_share"  # its key has more in line than is its share


class Crowd:
    """Counts and bounds."""

    def __init__(self, most_requests: int, most_tokens: int) -> None:
        self._most_requests = most_requests
        self._most_tokens = most_tokens
        self._by_key: dict[str, dict[Waiting, None]] = {}
        self._key_tokens: dict[str, int] = {}
        self._by_priority: dict[int, dict[Waiting, None]] = {}
        self.requests = 0
        self.tokens = 0

    def fits(self, arriving: Waiting) -> bool:
        """There is room for one more like this."""
        return self.requests < self._most_requests and self.tokens + arriving.tokens <= self._most_tokens

    def make_room(self, arriving: Waiting) -> list[tuple[Waiting, Verdict]]:
        """Who has to go for `arriving`, with the reason; itself where it may push nobody out. Empty where it fits.

        It pushes out the newest of a key that has more in line than its own would have then, and requests of lower priority.
        """
        out: list[tuple[Waiting, Verdict]] = []
        requests, tokens = self.requests, self.tokens
        if arriving.tokens > self._most_tokens:
            return [(arriving, Verdict.FULL)]
        for waiting, verdict in self._expendable(arriving):
            if requests < self._most_requests and tokens + arriving.tokens <= self._most_tokens:
                return out
            out.append((waiting, verdict))
            requests, tokens = requests - 1, tokens - waiting.tokens
        if requests < self._most_requests and tokens + arriving.tokens <= self._most_tokens:
            return out
        return [(arriving, Verdict.OVER_SHARE if self._over_share(arriving) else Verdict.FULL)]

    def join(self, waiting: Waiting) -> None:
        """One more waits."""
        self.requests += 1
        self.tokens += waiting.tokens
        self._by_key.setdefault(waiting.key, {})[waiting] = None
        self._key_tokens[waiting.key] = self._key_tokens.get(waiting.key, 0) + waiting.tokens
        self._by_priority.setdefault(waiting.priority, {})[waiting] = None

    def leave(self, waiting: Waiting) -> None:
        """One waits no longer."""
        self.requests -= 1
        self.tokens -= waiting.tokens
        of_key, of_priority = self._by_key[waiting.key], self._by_priority[waiting.priority]
        del of_key[waiting], of_priority[waiting]
        self._key_tokens[waiting.key] -= waiting.tokens
        if not of_key:
            del self._by_key[waiting.key], self._key_tokens[waiting.key]
        if not of_priority:
            del self._by_priority[waiting.priority]

    def _expendable(self, arriving: Waiting) -> Iterator[tuple[Waiting, Verdict]]:
        """Who may be pushed out, first those of lower priority, the lowest and newest first."""
        for priority in sorted(self._by_priority):
            if priority >= arriving.priority:
                break
            for waiting in reversed(self._by_priority[priority]):
                yield waiting, Verdict.FULL
        heaviest = max(self._by_key, key=self._weight, default=arriving.key)
        if heaviest == arriving.key:
            return
        mine = self._weight(arriving.key, arriving)
        weight = self._weight(heaviest)
        for waiting in reversed(self._by_key[heaviest]):
            weight -= self._weight_of(waiting)
            if weight < mine:  # then the other would be the lighter one
                return
            if waiting.priority == arriving.priority:
                yield waiting, Verdict.OVER_SHARE

    def _over_share(self, arriving: Waiting) -> bool:
        keys = self._by_key.keys() | {arriving.key}
        return len(keys) > 1 and self._weight(arriving.key, arriving) > 1 / len(keys)

    def _weight(self, key: str, arriving: Waiting | None = None) -> float:
        """A key's part of what may wait: of the requests or of the tokens, whichever is more."""
        requests, tokens = len(self._by_key.get(key, ())), self._key_tokens.get(key, 0)
        if arriving is not None:
            requests, tokens = requests + 1, tokens + arriving.tokens
        return max(requests / self._most_requests, tokens / self._most_tokens)

    def _weight_of(self, waiting: Waiting) -> float:
        return max(1 / self._most_requests, waiting.tokens / self._most_tokens)


class Drain:
    """How fast a line drains, from the last departures."""

    def __init__(self) -> None:
        self._departures: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def left(self, now: float, tokens: int) -> None:
        """A request went from the line to a replica."""
        self._departures.append((now, tokens))

    def retry_after_s(self, now: float, requests: int, tokens: int, otherwise_s: float) -> float:
        """When what waits now will have gone, within 1..60 s; `otherwise_s` where nothing has left yet."""
        if not self._departures:
            return min(max(otherwise_s, RETRY_LEAST_S), RETRY_MOST_S)
        span_s = max(now - self._departures[0][0], 1e-3)
        left = sum(tokens for _, tokens in self._departures)
        by_count = requests * span_s / len(self._departures)
        by_tokens = tokens * span_s / left if left else 0.0
        return min(max(by_count, by_tokens, RETRY_LEAST_S), RETRY_MOST_S)
