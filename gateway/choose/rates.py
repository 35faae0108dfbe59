"""What finished requests say about a holder: how fast it prefills, what a request costs besides, how far our view is true.

Time to first byte is modelled as `overhead + (waited + uncached) / rate + decoding * drag`. Overhead and rate come from one
weighted least-squares line per holder (`line.py`), drag from what that line leaves over. No clock, no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.choose.line import Line

RATE_PRIOR = 2_000.0  # tokens per second; between a CPU replica (200) and a GPU (20,000)
OVERHEAD_PRIOR_S = 0.02
DRAG_PRIOR_S, DRAG_MAX_S = 0.001, 0.25  # per decoding sequence
TRUST_FLOOR = 0.1  # some credit always counts, so that a holder can earn trust again

_ENOUGH = 3  # observations until a holder's own line is taken even where it is slower than the others'
_DRAG_STEP = 0.1
_TRUST_KEEP = 0.85  # of the sums, per observation: the last seven or so count
_TRUST_CAP_TOKENS = 256.0  # beyond this a longer prediction does not count for more
_TRUST_PRIOR_TOKENS = 256.0  # held to be right before anything was seen


@dataclass(slots=True)
class _Holder:
    line: Line
    observations: int = 0
    drag_s: float = DRAG_PRIOR_S
    predicted: float = 0.0
    realised: float = 0.0


class Rates:
    """Online estimates per holder; unknown holders have the fleet's average until they are known themselves.

    Every call costs constant time. Not thread safe; belongs to the loop.
    """

    def __init__(self) -> None:
        self._holders: dict[int, _Holder] = {}
        # Over holders with enough observations: how many, and the sums of the logarithms of overhead and slope.
        self._known = 0
        self._log_overhead = 0.0
        self._log_slope = 0.0

    def prefill_rate(self, holder: int) -> float:
        """Tokens per second, within `line.RATE_MIN` .. `line.RATE_MAX`.

        With fewer than three observations the faster of the holder's own line and the fleet's average: a slow first request
        (a cold engine) must not keep the second one away.
        """
        _, slope_s = self._line(holder)
        return 1 / slope_s

    def overhead_s(self, holder: int) -> float:
        """Seconds a request costs on an idle holder beside its prefill: network, parsing, the first step."""
        overhead_s, _ = self._line(holder)
        return overhead_s

    def drag_s(self, holder: int, decoding: int) -> float:
        """Seconds a request costs beside waiting and prefill while `decoding` sequences decode: overhead + decoding * drag.

        Never falls when `decoding` rises.
        """
        known = self._holders.get(holder)
        return self.overhead_s(holder) + decoding * (known.drag_s if known else DRAG_PRIOR_S)

    def trust(self, holder: int) -> float:
        """Realised over predicted credit, `TRUST_FLOOR`..1: `(realised + prior) / (predicted + prior)` over sums that forget.

        1.0 before anything was seen. A lower realised credit never raises it. Three full misses in a row on long prompts
        leave less than 0.3, one miss among hits more than 0.8.
        """
        known = self._holders.get(holder)
        if known is None:
            return 1.0
        share = (known.realised + _TRUST_PRIOR_TOKENS) / (known.predicted + _TRUST_PRIOR_TOKENS)
        return max(share, TRUST_FLOOR)

    def observe_first_byte(
        self, holder: int, *, uncached_tokens: int, waited_tokens: int, ttft_s: float, decoding: int = 0
    ) -> None:
        """A request got its first byte after ttft_s.

        uncached_tokens: of its own prompt; as the engine reported where known, else as predicted. waited_tokens: uncached
        tokens that were queued in front of it when it was sent. decoding: sequences that were decoding then.
        """
        if not (math.isfinite(ttft_s) and ttft_s > 0):
            return
        known = self._known_holder(holder)
        line, tokens = known.line, max(0, uncached_tokens) + max(0, waited_tokens)
        self._count(known, -1)
        if decoding > 0:
            left_over = ttft_s - line.predict(tokens) - decoding * known.drag_s
            bound = line.predict(tokens)  # a stall is not taken for drag
            step = _DRAG_STEP * min(max(left_over, -bound), bound) / decoding
            known.drag_s = min(max(known.drag_s + step, 0.0), DRAG_MAX_S)
        line.add(tokens, ttft_s - max(0, decoding) * known.drag_s)
        known.observations += 1
        self._count(known, +1)

    def observe_credit(self, holder: int, predicted: int, realised: int) -> None:
        """The engine reported `realised` cached tokens where `predicted` were expected; more than predicted counts as all."""
        if predicted <= 0:
            return  # says nothing about what we believed the holder to have
        known = self._known_holder(holder)
        weight = min(float(predicted), _TRUST_CAP_TOKENS)
        share = min(max(realised, 0), predicted) / predicted
        known.predicted = known.predicted * _TRUST_KEEP + weight
        known.realised = known.realised * _TRUST_KEEP + weight * share

    def forget(self, holder: int) -> None:
        """Nothing is known of this holder number any more: a new replica has it, or its engine started anew."""
        known = self._holders.pop(holder, None)
        if known is not None:
            self._count(known, -1)

    def _line(self, holder: int) -> tuple[float, float]:
        """(overhead, slope) in seconds and seconds per token."""
        known = self._holders.get(holder)
        if known is None:
            return self._average()
        line = known.line
        if known.observations >= _ENOUGH:
            return line.overhead_s, line.slope_s
        overhead_s, slope_s = self._average()
        return min(line.overhead_s, overhead_s), min(line.slope_s, slope_s)

    def _average(self) -> tuple[float, float]:
        """The geometric mean of the holders that are known well enough; the priors when there is none."""
        if not self._known:
            return OVERHEAD_PRIOR_S, 1 / RATE_PRIOR
        return math.exp(self._log_overhead / self._known), math.exp(self._log_slope / self._known)

    def _known_holder(self, holder: int) -> _Holder:
        known = self._holders.get(holder)
        if known is None:
            known = self._holders[holder] = _Holder(Line(*self._average()))
        return known

    def _count(self, known: _Holder, sign: int) -> None:
        """Take the holder out of the averages (-1) or put it in (+1)."""
        if known.observations >= _ENOUGH:
            self._known += sign
            self._log_overhead += sign * math.log(max(known.line.overhead_s, 1e-6))
            self._log_slope += sign * math.log(known.line.slope_s)
