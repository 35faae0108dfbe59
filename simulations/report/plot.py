"""The comparison as a picture: how TTFT is distributed, and how much of the prompts was found cached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simulations.errors import SettingError
from simulations.run import Run

_FORMATS = (".png", ".pdf", ".svg")


def check_plot(path: Path) -> None:
    """Raise SettingError before a long replay when its picture could not be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise SettingError("--plot needs matplotlib: pip install 'trunkline[simulate]'") from None
    if path.suffix not in _FORMATS:
        raise SettingError(f"--plot writes .png, .pdf or .svg, got {path.name}")
    if not path.parent.is_dir():
        raise SettingError(f"--plot: there is no folder {path.parent}")


def draw(runs: Sequence[Run], path: Path, title: str) -> None:
    """Write two panels: the TTFT distribution per policy, and the hit rate per policy."""
    from matplotlib.figure import Figure

    # A Figure of its own: pyplot would keep global state and pick a screen backend.
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    distribution, shares = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(title)
    for run in runs:
        ttft_s = np.sort(run.ttft_s)
        distribution.plot(ttft_s, np.arange(1, len(ttft_s) + 1) / len(ttft_s), label=run.policy)
    distribution.set(xscale="log", xlabel="time to first token, s", ylabel="share of requests", ylim=(0, 1))
    distribution.grid(alpha=0.3)
    distribution.legend()
    names = [run.policy for run in runs]
    hit_rates = [100 * run.hit_tokens.sum() / run.input_tokens.sum() for run in runs]
    bars = shares.bar(names, hit_rates, color=[f"C{number}" for number in range(len(runs))])
    shares.bar_label(bars, fmt="%.1f %%")
    shares.margins(y=0.1)
    shares.set(ylabel="prompt tokens found in a cache, %")
    # Without the writer's name and version two runs give the same file.
    figure.savefig(path, dpi=120, metadata={"Software": None} if path.suffix == ".png" else None)
