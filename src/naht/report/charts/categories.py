"""Figures over named categories: dots with intervals, and matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from naht.report.charts import svg
from naht.report.charts.looks import HEAT_STEPS, Look
from naht.report.charts.numbers import decimals, describe, number
from naht.report.charts.sheet import Key, Sheet, in_panel, reach, shade
from naht.report.charts.svg import Axis, rule, shortened, tag, text_width
from naht.report.content import Mark, Panel, Series


def _category(mark: Mark) -> str:
    return mark.x if isinstance(mark.x, str) else f"{mark.x:g}"


def _categories(panel: Panel) -> list[str]:
    return list(dict.fromkeys(_category(m) for series in panel.series for m in series.marks))


def _present(panel: Panel, category: str) -> list[Series]:
    """The series that have something to say about a category."""
    return [series for series in panel.series if any(_category(m) == category for m in series.marks)]


# Dots with intervals.


def draw_dots(sheet: Sheet) -> tuple[str, float]:
    """A row per category and in it a line per series: names of any length are read without turning the head."""
    figure = sheet.figure
    categories = [_categories(panel) for panel in figure.panels]
    same = all(names == categories[0] for names in categories)
    marks = [m for panel in figure.panels for series in panel.series for m in series.marks]
    keys = sheet.keys(line=False)
    if any(m.paper is not None for m in marks):
        keys.append(Key("the paper's", Look(6), line=False, hollow=True))
    if any(m.trials for m in marks):
        keys.append(Key("single seeds", Look(7), line=False, small=True))
    legend, y = sheet.legend(keys)
    widest = max((text_width(name) for names in categories for name in names), default=0.0)
    left = min(widest + 14, 0.4 * sheet.width if sheet.narrow else 260 if sheet.columns == 1 else 150)
    inner, rows = sheet.places(left, 22.0, 14.0, each=not same)
    axes = sheet.axes(reach, margin=0.04, free=figure.free)
    head = 22.0 * any(panel.title for panel in figure.panels) + 4
    pitch, padding = 17.0, 12.0
    body = [legend]
    for row in rows:
        tallest = 0.0
        for place in row:
            i, panel, x, first = place.number, place.panel, place.x, place.labelled
            names = categories[i]
            lines = max((len(_present(panel, name)) for name in names), default=1)
            tall = padding + len(names) * (lines * pitch + padding)
            tallest = max(tallest, tall)
            axis, top, bottom = axes[i].on(x, x + inner), y + head, y + head + tall
            parts = [svg.text(x, y + 13, panel.title, "title")] if panel.title else []
            for value, words in zip(*axis.ticks(min(max(3, int(inner / 60)), 8)), strict=True):
                parts.append(rule("grid", axis(value), top, axis(value), bottom))
                parts.append(svg.text(axis(value), bottom + 17, words, "quiet number", "middle"))
            if axis.low < 0 < axis.high:
                parts.append(rule("quiet", axis(0), top, axis(0), bottom))
            parts += [sheet.level(level, axis, Axis(0, 1, bottom, top), vertical=True) for level in panel.levels]
            for k, name in enumerate(names):
                at = top + padding + k * (lines * pitch + padding)
                if k:
                    parts.append(rule("grid", x - left if first else x, at - padding / 2, x + inner, at - padding / 2))
                if first:
                    parts.append(_name(x - 12, at + lines * pitch / 2 + 4, name, left - 14))
                parts += _dots_of(sheet, panel, name, axis, at + pitch / 2, pitch)
            parts.append(svg.text(x + inner / 2, bottom + 35, figure.y_label, "quiet", "middle"))
            if first and text_width(figure.x_label) + text_width(figure.y_label) / 2 < left + inner / 2 - 12:
                parts.append(svg.text(x - left, bottom + 35, figure.x_label, "quiet"))
            body.append(tag("g", *parts, class_="panel", data_panel=i))
        y += head + tallest + 46
    return "".join(body), y


def _name(x: float, y: float, name: str, width: float) -> str:
    """A name left of x, in two lines if it is too long for one."""
    words = name.split(" ")
    if text_width(name) <= width or len(words) == 1:
        return svg.text(x, y, shortened(name, width), anchor="end")
    cut = min(range(1, len(words)), key=lambda k: abs(len(" ".join(words[:k])) - len(name) / 2))
    first, second = (shortened(" ".join(part), width, 11) for part in (words[:cut], words[cut:]))
    return svg.text(x, y - 6, first, "small", "end") + svg.text(x, y + 6, second, "small", "end")


def _dots_of(sheet: Sheet, panel: Panel, category: str, axis: Axis, top: float, pitch: float) -> Iterator[str]:
    """One mark per series: estimate and interval, seeds a little below, the paper's number open."""

    def interval(low: float, high: float, width: float, dash: str, opacity: str) -> str:
        return svg.line(max(axis(low), axis.start), y, min(axis(high), axis.end), y, width, dash, opacity=opacity)

    for k, series in enumerate(_present(panel, category)):
        shape, y = sheet.look(series).shape, top + k * pitch - 1.5
        for mark in (m for m in series.marks if _category(m) == category):
            area = {"x": axis.start, "y": y - pitch / 2 + 1, "width": axis.end - axis.start, "height": pitch}
            parts = [tag("rect", **area, fill="transparent")]
            if mark.trials:
                parts.append(svg.markers("circle", [(axis(trial), y + 6) for trial in mark.trials], 1.7, opacity=0.5))
            if mark.low is not None and mark.high is not None:
                parts.append(interval(mark.low, mark.high, 2, "", "0.75"))
            parts.append(svg.markers(shape, [(axis(mark.value), y)], 4.2, opacity=shade(series)))
            if mark.paper is not None:
                mean, half = mark.paper.mean, mark.paper.half_width
                if half is not None:
                    parts.append(interval(mean - half, mean + half, 1, "2 2", "0.8"))
                parts.append(tag("circle", cx=axis(mean), cy=y, r=4.0, class_="bare", fill="currentColor"))
                parts.append(svg.markers(shape, [(axis(mean), y)], 4.2, hollow=True))
            label = in_panel(panel, f"{series.name}, {category}: {describe(mark)}")
            yield sheet.group(series, *parts, label=label)


# Matrices.


def _values(panels: Sequence[Panel]) -> list[float]:
    return [m.value for panel in panels for series in panel.series for m in series.marks]


def draw_matrix(sheet: Sheet) -> tuple[str, float]:
    """Tables whose cells are the darker the higher their number; rows are series, columns categories."""
    figure = sheet.figure
    columns = 1 if sheet.narrow else min(len(figure.panels), 3)
    most = max(1, *(len(_categories(panel)) for panel in figure.panels))
    share = (sheet.width - 30.0 * (columns - 1)) / columns
    widest = max((text_width(series.name) for panel in figure.panels for series in panel.series), default=0.0)
    left = min(widest + 14, (0.3 if sheet.narrow else 0.4) * share)
    wide, high = min((share - left) / most, 92.0), 34.0 if sheet.narrow else 40.0
    font = 12.0 if wide > 40 else 10.0 if wide > 28 else 8.5
    places = decimals(max(map(abs, _values(figure.panels)), default=1.0))
    scales = sheet.axes(_values, margin=0.0, free=figure.free)
    body, y = [], 0.0
    for row in sheet.rows(columns):
        tallest = 0.0
        for position, (i, panel) in enumerate(row):
            names = _categories(panel)
            x, titled = position * (share + 30), 22.0 * bool(panel.title)
            widths = [text_width(name, 11) for name in names]
            turned = any(width > wide - 4 for width in widths)
            head = titled + 20 + (min(max(widths), 90) * 0.75 + 12 if turned else 18)
            parts = [svg.text(x, y + 13, panel.title, "title")] if panel.title else []
            parts.append(svg.text(x, y + head - 7, figure.y_label, "quiet small"))
            middle = x + left + wide * len(names) / 2
            parts.append(svg.text(middle, y + titled + 12, figure.x_label, "quiet small", "middle"))
            for k, name in enumerate(names):
                parts.append(_column_name(x + left + wide * (k + 0.5), y + head - 7, name, turned=turned))
            for k, series in enumerate(panel.series):
                top = y + head + k * high
                name = shortened(series.name, left - 12)
                parts.append(svg.text(x + left - 10, top + high / 2 + 4, name, anchor="end"))
                for mark in series.marks:
                    category = _category(mark)
                    step = min(int(HEAT_STEPS * scales[i](mark.value)), HEAT_STEPS - 1)
                    cell = _cell(mark, x + left + wide * names.index(category), top, wide, high, places, font)
                    label = in_panel(panel, f"{series.name}, {category}: {describe(mark)}")
                    parts.append(svg.said(label, *cell, class_=f"cell h{step}", data_series=series.name))
            body.append(tag("g", *parts, class_="panel", data_panel=i))
            tallest = max(tallest, head + high * len(panel.series))
        y += tallest + 24
    return "".join(body), y - 16


def _column_name(x: float, y: float, name: str, *, turned: bool) -> str:
    if not turned:
        return svg.text(x, y, name, "small", "middle")
    turn = f"rotate(-42 {svg.px(x)} {svg.px(y)})"
    return svg.text(x, y, shortened(name, 90, 11), "small", "start", transform=turn)


def _cell(mark: Mark, x: float, y: float, wide: float, high: float, places: int, font: float) -> Iterator[str]:
    """A box with the number and, if there is room, half its interval's width."""
    half = None if mark.low is None or mark.high is None else (mark.high - mark.low) / 2
    two = half is not None and wide > 52
    centre, middle = x + wide / 2, y + high / 2 + 4
    yield tag("rect", x=x + 1, y=y + 1, width=wide - 2, height=high - 2, rx=3, fill="currentColor")
    yield svg.text(centre, middle - 6 * two, number(mark.value, places), "number", "middle", font_size=font)
    if two:
        yield svg.text(centre, middle + 9, f"± {number(half, places)}", "number small", "middle", opacity="0.8")
