"""Pieces of SVG: elements, markers, texts that fit, and axes with round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from naht.evaluation.statistics import Interval
from naht.report.charts.numbers import number, unit


def px(value: float) -> str:
    """A length in pixels, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, *content: str, **attributes: Any) -> str:
    """An element; attributes are escaped, content is not. `class_` and `data_x` become 'class' and 'data-x'."""
    given = ((k.rstrip("_").replace("_", "-"), v) for k, v in attributes.items() if v is not None and v != "")
    head = name + "".join(f' {k}="{escape(px(v) if isinstance(v, float) else str(v))}"' for k, v in given)
    return f"<{head}>{''.join(content)}</{name}>" if content else f"<{head}/>"


def said(label: str, *content: str, **attributes: Any) -> str:
    """A group that says what it shows: on hover, and to those who can't see it."""
    return tag("g", tag("title", escape(label)), *content, **attributes, role="img", tabindex="-1")


def text(x: float, y: float, words: str, class_: str = "", anchor: str = "", **attributes: Any) -> str:
    return tag("text", escape(words), x=float(x), y=float(y), class_=class_, text_anchor=anchor, **attributes)


def path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{px(x)} {px(y)}" for x, y in points)


def line(x1: float, y1: float, x2: float, y2: float, width: float = 1, dash: str = "", **attributes: Any) -> str:
    return tag(
        "path",
        d=path([(x1, y1), (x2, y2)]),
        stroke="currentColor",
        stroke_width=width,
        stroke_dasharray=dash,
        fill="none",
        **attributes,
    )


def rule(class_: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A line that belongs to no series, in the colour of a class: 'grid' or 'quiet'."""
    return tag("path", d=path([(x1, y1), (x2, y2)]), class_=class_)


def faded(opacity: float) -> str | None:
    return None if opacity >= 1 else f"{opacity:.2f}"


# Markers.

CORNERS = {
    "square": ((-0.89, -0.89), (0.89, -0.89), (0.89, 0.89), (-0.89, 0.89)),
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "triangle": ((0, -1.25), (1.2, 0.9), (-1.2, 0.9)),
    "down": ((0, 1.25), (1.2, -0.9), (-1.2, -0.9)),
}
"""Of markers with about the area of a circle of radius 1."""


def _outline(shape: str, x: float, y: float, r: float) -> str:
    if shape == "circle":
        arc = f"a{px(r)} {px(r)} 0 1 0 "
        return f"M{px(x - r)} {px(y)}{arc}{px(2 * r)} 0{arc}{px(-2 * r)} 0"
    if shape == "plus":
        return f"M{px(x - r)} {px(y)}H{px(x + r)}M{px(x)} {px(y - r)}V{px(y + r)}"
    return path((x + r * dx, y + r * dy) for dx, dy in CORNERS[shape]) + "Z"


def markers(
    shape: str, points: Iterable[tuple[float, float]], r: float, *, hollow: bool = False, opacity: float = 1.0
) -> str:
    """One path with a marker at each point: full, or only its rim."""
    rim = hollow or shape == "plus"
    return tag(
        "path",
        d="".join(_outline(shape, x, y, r) for x, y in points),
        fill="none" if rim else "currentColor",
        stroke="currentColor" if rim else None,
        stroke_width=(1.6 if hollow else 2.2) if rim else None,
        opacity=faded(opacity),
    )


# Texts that fit.


def text_width(words: str, size: float = 12) -> float:
    """About how wide a text is, in pixels: whoever reads it chooses the font."""
    thin, broad = "iljtfrI.,:;'|!()[] ", "mwMW%—"
    return size * sum(0.32 if c in thin else 0.85 if c in broad else 0.66 if c.isupper() else 0.56 for c in words)


def shortened(words: str, width: float, size: float = 12) -> str:
    while len(words) > 2 and text_width(words, size) > width:
        words = words[:-2].rstrip() + "…"
    return words


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, in the same order, at least `gap` apart and between low and high.

    Neighbours that are too close form a group around the middle of what they want, as far as there is room.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    groups: list[tuple[float, int]] = []  # (where the first of the group sits if alone it decides, members)
    for i in order:
        first, size = wanted[i], 1
        while groups and groups[-1][0] + groups[-1][1] * gap > first:
            other, others = groups.pop()
            first = (other * others + (first - others * gap) * size) / (others + size)
            size += others
        groups.append((first, size))
    places = [first + k * gap for first, size in groups for k in range(size)]
    for k in range(len(places)):
        places[k] = max(places[k], low + k * gap)
    for k in reversed(range(len(places))):
        places[k] = min(places[k], max(high, low + (len(places) - 1) * gap) - (len(places) - 1 - k) * gap)
    result = [0.0] * len(wanted)
    for place, i in zip(places, order, strict=True):
        result[i] = place
    return result


# Axes.


@dataclass(frozen=True)
class Axis:
    """A range of numbers on a range of pixels."""

    low: float
    high: float
    start: float = 0.0
    end: float = 1.0
    counts: bool = False
    """Only whole numbers mean something."""

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def on(self, start: float, end: float) -> Axis:
        return replace(self, start=start, end=end)

    def ticks(self, most: int) -> tuple[list[float], list[str]]:
        """At most about so many round numbers in the range, and how they are written."""
        for more in (1, 2, 4):  # one number alone says little
            step = max(nice_step((self.high - self.low) / (more * most)), float(self.counts))
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            values = [k * step for k in range(first, last + 1)]
            if len(values) >= 3:
                break
        size, letter = unit(max(map(abs, values), default=0.0))
        places = max(0, -math.floor(math.log10(step / size) + 1e-9))
        return values, [number(v / size, places) + letter if v or not letter else "0" for v in values]


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, 50, ... (and their tenths) that is no less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def axis_of(values: Iterable[float], *, margin: float, zero: bool = False) -> Axis:
    """Room for all values and a share of it at both ends; with `zero` from 0 on where that is not far away."""
    values = list(values)
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    if zero and 0 < low < 0.4 * high:
        return Axis(0.0, high + margin * high)
    return Axis(low - margin * (high - low), high + margin * (high - low))


# A figure as small as a word.


def glyph(difference: Interval) -> str:
    """A difference and its interval beside zero."""
    width, middle = 64.0, 7.0
    ends = [v for v in (0.0, difference.mean, difference.low, difference.high) if math.isfinite(v)]
    low, high = min(ends), max(ends)
    axis = Axis(low, high if high > low else low + 1, 5, width - 5)
    parts = [rule("quiet", axis(0), 0, axis(0), 2 * middle)]
    if math.isfinite(difference.low) and math.isfinite(difference.high):
        parts.append(line(axis(difference.low), middle, axis(difference.high), middle, 2))
    parts.append(markers("circle", [(axis(difference.mean), middle)], 3.6))
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {px(width)} {px(2 * middle)}",
        width=width,
        height=2 * middle,
        class_="glyph",
        aria_hidden="true",
    )
