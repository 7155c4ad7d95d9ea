"""Figures from rows of numbers. Nothing here trains or plays."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from naht.evaluation.statistics import mean_interval
from naht.storage import write_file

Curve = Sequence[tuple[float, float]]
"""(x, y) points of one trial."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Distinguishable with any colour vision (Okabe and Ito)."""


def learning_curves(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    *,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """A panel per title, a colour per method: the mean over trials and its 95 % Student-t interval as a band.

    `panels[title][method]` holds one curve per trial; trials must share their x values. `lines[title]` names constant
    levels to compare with. Bands are cut where they leave the range of the trials. The file's ending (.png, .pdf, .svg)
    decides on the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 4.3 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    names = list(dict.fromkeys(method for methods in panels.values() for method in methods))
    for axis, (title, methods) in zip(axes, panels.items(), strict=True):
        for level_name, level in (lines or {}).get(title, {}).items():
            axis.axhline(level, color="0.55", linestyle="--", linewidth=1)
            axis.annotate(level_name, (0.99, level), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                          fontsize=8, color="0.35")  # fmt: skip
        for method, curves in methods.items():
            colour = COLOURS[names.index(method) % len(COLOURS)]
            x = np.array([point[0] for point in curves[0]])
            intervals = [mean_interval([curve[i][1] for curve in curves]) for i in range(len(x))]
            axis.plot(x, [i.mean for i in intervals], color=colour, label=method, linewidth=1.6)
            if len(curves) > 1:
                low, high = [i.low for i in intervals], [i.high for i in intervals]
                axis.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel(x_label)
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(y_label)
    # The bands of two or three trials can be many times as wide as all that was seen: the axis follows the trials.
    seen = [y for methods in panels.values() for curves in methods.values() for curve in curves for _, y in curve]
    seen += [level for levels in (lines or {}).values() for level in levels.values()]
    margin = 0.1 * (max(seen) - min(seen)) or 1.0
    axes[0].set_ylim(min(seen) - margin, max(seen) + margin)
    fullest = max(zip(axes, panels.values(), strict=True), key=lambda pair: len(pair[1]))[0]
    fullest.legend(frameon=False, fontsize=9)
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lstrip("."), dpi=160)
    write_file(path, image.getvalue())
