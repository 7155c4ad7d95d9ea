"""The sheet that all kinds of figures are drawn on: panels in rows, how series look, their legend, levels."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TypeVar

from naht.report.charts import svg
from naht.report.charts.looks import Look, items_of, method_of
from naht.report.charts.numbers import estimate
from naht.report.charts.svg import Axis, axis_of, tag, text_width
from naht.report.content import Figure, Level, Mark, Panel, Series

WIDE, NARROW = 960, 360
"""Widths in pixels of the two forms of a figure: for a screen and for a phone."""


@dataclass(frozen=True)
class Place:
    """Where a panel stands in its row."""

    number: int
    panel: Panel
    x: float
    labelled: bool
    """Whether numbers or names stand on its left."""


@dataclass(frozen=True)
class Key:
    """An entry of the legend. What has no series explains a mark and can't be switched off."""

    name: str
    look: Look
    series: str = ""
    line: bool = True
    hollow: bool = False
    small: bool = False
    opacity: float = 1.0
    method: str = ""


class Sheet:
    """A figure, its width and how its series look."""

    def __init__(self, figure: Figure, name: str, width: int, palette: Mapping[str, Look]):
        self.figure, self.width, self.palette = _cleaned(figure), width, palette
        self.name = re.sub(r"[^a-z0-9]+", "-", f"{name}-{width}".lower())
        self.narrow = width < 600
        count = len(figure.panels)
        self.columns = 1 if self.narrow else 2 if count == 4 else min(count, 3)
        self.looks: dict[str, Look] = {}
        used: Counter[str] = Counter()
        for series in (s for panel in self.figure.panels for s in panel.series):
            if series.name not in self.looks:
                method = method_of(series)
                variant = used[method] if series.shade is None else 0
                self.looks[series.name] = palette[method].variant(variant)
                used[method] += 1

    def look(self, item: Series | Level) -> Look:
        if isinstance(item, Series):
            return self.looks[item.name]
        look = self.palette[method_of(item)]
        return replace(look, dash="1 3" if item.paper else look.dash or "5 4", shape="")

    def group(self, item: Series | Level, *content: str, label: str = "") -> str:
        """What belongs to a series or level: what is switched off together. With a label, it says it."""
        kind = "series level" if isinstance(item, Level) else "series"
        attributes = {
            "class_": f"{kind} t{self.look(item).tone}",
            "data_series": item.name,
            "data_method": method_of(item),
        }
        return svg.said(label, *content, **attributes) if label else tag("g", *content, **attributes)

    # Panels.

    def rows(self, columns: int) -> Iterator[list[tuple[int, Panel]]]:
        numbered = list(enumerate(self.figure.panels))
        for start in range(0, len(numbered), columns):
            yield numbered[start : start + columns]

    def places(self, left: float, gap: float, right: float, *, each: bool) -> tuple[float, list[list[Place]]]:
        """How wide all panels are, and row by row where they stand.

        Left of a panel is room for labels if it is the first of its row or `each` has them, else a gap.
        """
        columns = self.columns
        labels = columns if each else 1
        inner = (self.width - left * labels - gap * (columns - labels) - right * columns) / columns
        rows = []
        for row in self.rows(columns):
            x, placed = 0.0, []
            for k, (i, panel) in enumerate(row):
                labelled = each or k == 0
                x += left if labelled else gap
                placed.append(Place(i, panel, x, labelled))
                x += inner + right
            rows.append(placed)
        return inner, rows

    def axes(
        self, values: Callable[[Sequence[Panel]], Iterable[float]], *, margin: float, zero: bool = False, free: bool
    ) -> list[Axis]:
        """One per panel, for the values in it or, where they are not free, in all of them."""
        panels = self.figure.panels
        if free:
            return [axis_of(values([panel]), margin=margin, zero=zero) for panel in panels]
        return [axis_of(values(panels), margin=margin, zero=zero)] * len(panels)

    # The legend.

    def key(self, item: Series | Level, *, line: bool) -> Key:
        """The entry of a series, with a line or only its marker, or of a level, which is a line."""
        look, method = self.look(item), method_of(item)
        if isinstance(item, Level):
            return Key(item.name, look, item.name, method=method)
        return Key(item.name, look, item.name, line, opacity=shade(item), method=method)

    def keys(self, *, line: bool) -> list[Key]:
        """The legend of all series and levels."""
        entries: dict[str, Key] = {}
        for panel in self.figure.panels:
            for item in items_of(panel):
                entries.setdefault(item.name, self.key(item, line=line))
        return list(entries.values())

    def legend(self, keys: Sequence[Key]) -> tuple[str, float]:
        """Entries in as many lines as they need, and where they end."""
        x, y, parts = 0.0, 12.0, []
        for key in keys:
            swatch = 30 if key.line else 16
            wide = swatch + text_width(key.name) + 20
            if x > 0 and x + wide > self.width + 16:
                x, y = 0.0, y + 22
            parts.append(key_entry(key, x, y, swatch, wide))
            x += wide
        return "".join(parts), (y + 16 if keys else 0.0)

    # Levels.

    def level(self, level: Level, across: Axis, up: Axis, *, vertical: bool = False) -> str:
        """A line through the whole panel, its interval a band: horizontal, or vertical where values run across."""
        value = across if vertical else up
        parts = []
        if level.low is not None and level.high is not None:
            first, last = sorted((value(max(level.low, value.low)), value(min(level.high, value.high))))
            if vertical:
                box = {"x": first, "y": up.end, "width": last - first, "height": up.start - up.end}
            else:
                box = {"x": across.start, "y": first, "width": across.end - across.start, "height": last - first}
            parts.append(tag("rect", fill="currentColor", opacity="0.1", **box))
        at = value(level.value)
        ends = (at, up.start, at, up.end) if vertical else (across.start, at, across.end, at)
        parts.append(svg.line(*ends, 1.5, self.look(level).dash))
        label = f"{level.name}: {estimate(level.value, level.low, level.high)}"
        return self.group(level, *parts, label=f"{label} (the paper's)" if level.paper else label)


def key_entry(key: Key, x: float, y: float, swatch: float, wide: float, text: str = "") -> str:
    """One entry of a legend, `y` being the foot of its text: a sample, the name and, quietly, what else is to say."""
    middle = y - 4
    sample = ""
    if key.line:
        sample = svg.line(x, middle, x + swatch - 6, middle, 2, key.look.dash, opacity=svg.faded(key.opacity))
    if key.look.shape:
        centre, radius = (x + (swatch - 6) / 2, middle), 2.2 if key.small else 4
        sample += svg.markers(key.look.shape, [centre], radius, hollow=key.hollow, opacity=key.opacity)
    sample = tag("g", sample, class_=f"t{key.look.tone}") if sample else ""
    words = svg.text(x + swatch, y, key.name)
    if text:
        words = words.removesuffix("</text>") + tag("tspan", escape(text), class_="quiet number", dx=6) + "</text>"
    if not key.series:
        return tag("g", sample, words, class_="quiet")
    # An area to hit, as large as the entry.
    area = tag("rect", x=float(x), y=float(y - 15), width=float(wide - 8), height=20.0, fill="transparent")
    return tag(
        "g",
        area,
        sample,
        words,
        class_="key",
        data_series=key.series,
        data_method=key.method,
        role="button",
        tabindex="0",
        aria_pressed="true",
        aria_label=f"show {key.series}",
    )


def shade(series: Series) -> float:
    """Opacity of a series: stages are told apart by it."""
    return 1.0 if series.shade is None else 0.28 + 0.72 * min(max(series.shade, 0.0), 1.0)


def in_panel(panel: Panel, label: str) -> str:
    """What a mark says, after the title of its panel if there is one."""
    return f"{panel.title}, {label}" if panel.title else label


def reach(panels: Sequence[Panel]) -> Iterator[float]:
    """Values that an axis has to hold: all estimates, seeds and levels, and intervals as far as they are not absurd.

    The interval of two or three seeds can be many times as wide as all that was seen; it is cut.
    """
    marks = [mark for panel in panels for series in panel.series for mark in series.marks]
    items: list[Mark | Level] = [*marks, *(level for panel in panels for level in panel.levels)]
    seen = [item.value for item in items] + [trial for mark in marks for trial in mark.trials]
    seen += [mark.paper.mean for mark in marks if mark.paper is not None]
    seen = seen or [0.0, 1.0]
    yield from seen
    low, high = min(seen), max(seen)
    room = 0.3 * (high - low)
    for item in items:
        if item.low is not None and item.high is not None:
            yield max(item.low, low - room)
            yield min(item.high, high + room)


def _known(value: float | None, within: tuple[float, float]) -> float | None:
    """The end of an interval, as far as values can be; None if it is no number."""
    return min(max(value, within[0]), within[1]) if value is not None and math.isfinite(value) else None


Bounded = TypeVar("Bounded", Mark, Level)


def _cleaned(figure: Figure) -> Figure:
    """Without marks and ends of intervals that are no numbers (an interval of one seed, for instance) or that nothing
    can be (an interval of rates below 0)."""
    numeric = figure.kind in ("lines", "scatter")

    def bounded(item: Bounded) -> Bounded:
        return replace(item, low=_known(item.low, figure.within), high=_known(item.high, figure.within))

    def drawable(m: Mark) -> bool:
        return math.isfinite(m.value) and not (numeric and (isinstance(m.x, str) or not math.isfinite(m.x)))

    def clean(panel: Panel) -> Panel:
        series = (replace(s, marks=tuple(bounded(m) for m in s.marks if drawable(m))) for s in panel.series)
        levels = tuple(bounded(v) for v in panel.levels if math.isfinite(v.value))
        return replace(panel, series=tuple(series), levels=levels)

    return replace(figure, panels=tuple(map(clean, figure.panels)))
