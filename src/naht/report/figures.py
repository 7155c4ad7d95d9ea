"""Figures from rows of numbers. Nothing here trains or plays."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from naht.evaluation.statistics import Interval, mean_interval
from naht.storage import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float]]
"""(x, y) points of one trial."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Distinguishable with any colour vision (Okabe and Ito; grey for their yellow, which is hard to see on white)."""
DASHES = ("-", "--", ":", "-.")


def learning_curves(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    *,
    x_label: str,
    y_label: str,
    lines: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """A panel per title (more than three in two rows), a colour per method: the mean over trials and its 95 % Student-t
    interval as a band.

    Two trials are thin lines instead.

    `panels[title][method]` holds one curve per trial; trials must share their x values. Variants of a method, named
    'method, variant', share its colour and differ in the dashes of their lines. `lines[title]` names constant
    levels to compare with. Bands are cut where they leave the range of the trials. The file's ending (.png, .pdf, .svg)
    decides on the format.
    """
    names = dict.fromkeys(method for methods in panels.values() for method in methods)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(map(_kind, names)))}
    dashes = {name: DASHES[i % len(DASHES)] for i, name in enumerate(dict.fromkeys(map(_variant, names)))}
    crowded = len(names) > 4
    rows = 1 if len(panels) <= 3 else 2
    columns = ceil(len(panels) / rows)
    figure = new_figure(1.2 + 4.3 * columns + 1.5 * crowded, 0.2 + 3.4 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    axes = grid.ravel()[: len(panels)]
    for axis in grid.ravel()[len(panels) :]:
        axis.remove()
    for axis, (title, methods) in zip(axes, panels.items(), strict=True):
        for level_name, level in (lines or {}).get(title, {}).items():
            axis.axhline(level, color="0.55", linestyle="--", linewidth=1)
            # Above the line, where curves that come close to the level leave it readable.
            axis.annotate(
                level_name,
                (0.99, level),
                (0, 9),
                ("axes fraction", "data"),
                "offset points",
                ha="right",
                fontsize=8,
                color="0.35",
            )
        for method, curves in methods.items():
            colour, dash = colours[_kind(method)], dashes[_variant(method)]
            x = np.array([point[0] for point in curves[0]])
            intervals = [mean_interval([curve[i][1] for curve in curves]) for i in range(len(x))]
            axis.plot(x, [i.mean for i in intervals], color=colour, linestyle=dash, label=method, linewidth=1.6)
            if len(curves) == 2:  # the interval of two is as wide as six times their difference and says nothing
                for curve in curves:
                    axis.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.6)
            elif len(curves) > 2:
                low, high = [i.low for i in intervals], [i.high for i in intervals]
                axis.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel(x_label)
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    for first in grid[:, 0]:
        first.set_ylabel(y_label)
    # The bands of two or three trials can be many times as wide as all that was seen: the axis follows the trials.
    seen = [y for methods in panels.values() for curves in methods.values() for curve in curves for _, y in curve]
    seen += [level for levels in (lines or {}).values() for level in levels.values()]
    margin = 0.1 * (max(seen) - min(seen)) or 1.0
    axes[0].set_ylim(min(seen) - margin, max(seen) + margin)
    fullest = max(zip(axes, panels.values(), strict=True), key=lambda pair: len(pair[1]))[0]
    if not crowded:
        fullest.legend(frameon=False, fontsize=9)
    else:  # beside the panels: inside, it would cover curves
        handles = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(list(handles.values()), list(handles), frameon=False, fontsize=9, loc="outside right upper")
    save_figure(figure, path)


def _kind(method: str) -> str:
    return method.partition(", ")[0]


def _variant(method: str) -> str:
    return method.partition(", ")[2]


def grouped_bars(path: Path, groups: Mapping[str, Mapping[str, Interval]], *, y_label: str) -> None:
    """`groups[group][kind]`: a group of bars side by side, a colour per kind, with 95 % intervals as whiskers."""
    kinds = list(dict.fromkeys(kind for bars in groups.values() for kind in bars))
    figure = new_figure(max(4.0, 1.2 + 1.1 * len(groups)), 3.4)  # the legend needs some width, too
    axis = figure.subplots()
    width = 0.8 / len(kinds)
    for k, kind in enumerate(kinds):
        bars = [groups[group][kind] for group in groups]
        x = np.arange(len(groups)) + (k - (len(kinds) - 1) / 2) * width
        axis.bar(x, [i.mean for i in bars], 0.92 * width, color=COLOURS[k], label=kind)
        axis.errorbar(x, [i.mean for i in bars], [i.half_width for i in bars], fmt="none", ecolor="0.2", capsize=3)
    axis.axhline(0, color="0.2", linewidth=0.8)
    axis.set_xticks(range(len(groups)), list(groups))
    axis.set_ylabel(y_label)
    axis.grid(axis="y", color="0.92")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    # Above the bars: inside, it would cover some.
    axis.legend(frameon=False, fontsize=9, ncols=len(kinds), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save_figure(figure, path)


def forest(path: Path, panels: Mapping[str, Sequence[tuple[str, Interval]]], *, x_label: str) -> None:
    """`panels[title]` lists (label, difference): a dot with its 95 % interval each, one below the other, around 0."""
    most = max(len(lines) for lines in panels.values())
    figure = new_figure(1.0 + 3.6 * len(panels), 1.1 + 0.32 * most)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        y = np.arange(len(lines))
        means = [i.mean for _, i in lines]
        axis.axvline(0, color="0.2", linewidth=0.8)
        axis.errorbar(means, y, xerr=[i.half_width for _, i in lines], fmt="o", color=COLOURS[0], capsize=3)
        axis.set_yticks(y, [label for label, _ in lines])
        axis.set_ylim(len(lines) - 0.5, -0.5)
        axis.set_title(title, fontsize=11)
        axis.grid(axis="x", color="0.92")
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    figure.supxlabel(x_label, fontsize=10)
    save_figure(figure, path)


def heat_table(path: Path, cells: Sequence[tuple[str, str, Interval]], *, title: str) -> None:
    """A table of means and half widths, (row, column, value) each, coloured by the mean."""
    rows = list(dict.fromkeys(row for row, _, _ in cells))
    columns = list(dict.fromkeys(column for _, column, _ in cells))
    means = np.full((len(rows), len(columns)), np.nan)
    for row, column, interval in cells:
        means[rows.index(row), columns.index(column)] = interval.mean
    figure = new_figure(1.6 + 1.15 * len(columns), 1.2 + 0.62 * len(rows))
    axis = figure.subplots()
    image = axis.imshow(means, cmap="cividis", aspect="auto")
    middle = (np.nanmin(means) + np.nanmax(means)) / 2
    for row, column, interval in cells:
        at = columns.index(column), rows.index(row)
        text = f"{interval.mean:.1f}" + ("" if np.isnan(interval.half_width) else f"\n± {interval.half_width:.1f}")
        colour = "black" if interval.mean > middle else "white"
        axis.annotate(text, at, ha="center", va="center", fontsize=9, color=colour)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_xlabel("teammates")
    axis.set_ylabel("controlled")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title, fontsize=11)
    figure.colorbar(image, ax=axis, fraction=0.04, pad=0.02).outline.set_visible(False)
    save_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without any window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write it in one move; the file's ending (.png, .pdf, .svg) decides on the format."""
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lstrip("."), dpi=160)
    write_file(path, image.getvalue())
