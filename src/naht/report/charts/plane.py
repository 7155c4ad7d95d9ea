"""Figures with two numeric axes: lines with bands, and points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from naht.report.charts import svg
from naht.report.charts.numbers import decimals, describe, large, number
from naht.report.charts.sheet import Sheet, in_panel, key_entry, reach, shade
from naht.report.charts.svg import Axis, path, rule, spread, tag, text_width
from naht.report.content import Panel


def draw_plane(sheet: Sheet) -> tuple[str, float]:
    """Panels with two numeric axes, small multiples of each other."""
    figure, lines, columns = sheet.figure, sheet.figure.kind == "lines", sheet.columns
    keys = sheet.keys(line=lines)
    longest = max((text_width(f"{key.name} 00.0") for key in keys), default=0.0)
    roomy = not sheet.narrow and columns <= 2 and 0 < longest < 190 and len(keys) <= 9
    ends = lines and roomy and _end_apart(figure.panels)
    legend, y = ("", 0.0) if ends else sheet.legend(keys)
    values = sheet.axes(reach, margin=0.05, zero=lines, free=figure.free)
    xs = sheet.axes(_xs, margin=0.0 if lines else 0.06, free=figure.free and not lines)
    height = (190 if lines else 240) if sheet.narrow else ({1: 330, 2: 270}.get(columns, 215) if lines else 290)
    most = 4 if height < 250 else 6
    left = 10 + max(text_width(words) for axis in values for words in axis.ticks(most)[1])
    inner, rows = sheet.places(left, 24.0, longest + 50 if ends else 14.0, each=figure.free)
    titled = any(panel.title for panel in figure.panels)
    head = 20.0 * titled + 20
    body = [legend]
    for row in rows:
        for place in row:
            i, panel, x = place.number, place.panel, place.x
            across, up = xs[i].on(x, x + inner), values[i].on(y + head + height, y + head)
            across = replace(across, counts=all(x.is_integer() for x in _xs([panel])))
            parts = [svg.text(x, y + 13, panel.title, "title")] if panel.title else []
            if place.labelled:
                parts.append(svg.text(x - left, y + 20 * titled + 9, figure.y_label, "quiet"))
            parts.append(_grid(across, up, most, min(max(2, int(inner / 60)), 9), numbers=place.labelled))
            if lines:
                parts.append(_curves(sheet, panel, across, up, f"clip-{sheet.name}-{i}"))
            else:
                parts.append(_points(sheet, panel, across, up))
            if ends:
                parts.append(_end_labels(sheet, panel, across, up))
            if i + columns >= len(figure.panels):
                at, anchor = (x + inner, "end") if ends else (x + inner / 2, "middle")
                parts.append(svg.text(at, up.start + 36, figure.x_label, "quiet", anchor))
            axes = (across.low, across.high, across.start, across.end, up.low, up.high, up.start, up.end)
            body.append(tag("g", *parts, class_="panel", data_panel=i, data_axes=" ".join(f"{v:.8g}" for v in axes)))
        y += head + height + (44 if row is rows[-1] else 42)
    return "".join(body), y


def _xs(panels: Sequence[Panel]) -> Iterator[float]:
    return (float(m.x) for panel in panels for series in panel.series for m in series.marks)


def _grid(across: Axis, up: Axis, most_up: int, most_across: int, *, numbers: bool) -> str:
    parts = []
    for value, words in zip(*up.ticks(most_up), strict=True):
        parts.append(rule("grid", across.start, up(value), across.end, up(value)))
        if numbers:
            parts.append(svg.text(across.start - 8, up(value) + 4, words, "quiet number", "end"))
    for value, words in zip(*across.ticks(most_across), strict=True):
        parts.append(rule("quiet", across(value), up.start, across(value), up.start + 4))
        parts.append(svg.text(across(value), up.start + 18, words, "quiet number", "middle"))
    parts.append(rule("quiet", across.start, up.start, across.end, up.start))
    return "".join(parts)


def _curves(sheet: Sheet, panel: Panel, across: Axis, up: Axis, clip: str) -> str:
    """Levels below bands below lines; bands are cut at the panel's edge, which is called `clip`."""
    box = tag("rect", x=across.start, y=up.end, width=across.end - across.start + 6, height=up.start - up.end)
    parts = [tag("clipPath", box, id=clip)]
    parts += [sheet.level(level, across, up) for level in panel.levels]
    bands, curves = [], []
    for k, series in enumerate(panel.series):
        marks, look, opacity = series.marks, sheet.look(series), shade(series)
        if not marks:
            continue
        points = [(across(float(m.x)), up(m.value)) for m in marks]
        stride = max(1, len(points) // int(across.end - across.start))
        band = [(across(float(m.x)), up(m.low), up(m.high)) for m in marks if m.low is not None and m.high is not None]
        band, seeds = band[::stride], min(len(m.trials) for m in marks)
        thin = ""
        if seeds == 2 or (seeds > 2 and not band):
            # The interval of two seeds is as wide as six times their difference and says nothing.
            band = []
            for seed in range(seeds):
                d = path((x, up(m.trials[seed])) for (x, _), m in zip(points, marks, strict=True))
                thin += tag("path", d=d, fill="none", stroke="currentColor", stroke_width=0.8, opacity="0.55")
        if band:
            d = path([(x, low) for x, low, _ in band] + [(x, high) for x, _, high in reversed(band)]) + "Z"
            faint = f"{0.16 * opacity:.2f}"
            area = tag("path", d=d, fill="currentColor", opacity=faint, clip_path=f"url(#{clip})")
            bands.append(sheet.group(series, area))
        drawn = points[::stride] + ([points[-1]] if (len(points) - 1) % stride else [])
        curve = tag(
            "path",
            d=path(drawn),
            fill="none",
            stroke="currentColor",
            stroke_width=2,
            stroke_linejoin="round",
            stroke_dasharray=look.dash,
            opacity=svg.faded(opacity),
        )
        every = max(1, len(points) // 5)
        # Markers of different series stand at different places, so that close lines can be told apart.
        shown = points if len(points) <= 8 else points[(k * every) // 3 + 1 :: every]
        markers = svg.markers(look.shape, shown, 3.4, opacity=opacity)
        label = in_panel(panel, f"{series.name}: {describe(marks[-1])} at {large(float(marks[-1].x))}")
        curves.append(sheet.group(series, thin, curve, markers, label=label))
    return "".join(parts + bands + curves)


def _points(sheet: Sheet, panel: Panel, across: Axis, up: Axis) -> str:
    parts = [sheet.level(level, across, up) for level in panel.levels]
    for series in panel.series:
        points = [(across(float(m.x)), up(m.value)) for m in series.marks]
        dots = svg.markers(sheet.look(series).shape, points, 3.4, opacity=0.8 * shade(series))
        parts.append(sheet.group(series, dots, label=in_panel(panel, f"{series.name}: {len(points)} points")))
    return "".join(parts)


def _end_apart(panels: Sequence[Panel]) -> bool:
    """Do lines end at different heights? Where all end alike, as profiles do at 0, labels there would say nothing."""
    ends = {series.marks[-1].value for panel in panels for series in panel.series if series.marks}
    levels = {level.value for panel in panels for level in panel.levels}
    return len(ends | levels) > 1


def _end_labels(sheet: Sheet, panel: Panel, across: Axis, up: Axis) -> str:
    """Names beside the ends of lines and levels, moved apart where they would overlap."""
    lasts = [(series, series.marks[-1]) for series in panel.series if series.marks]
    entries = [(sheet.key(series, line=False), across(float(m.x)), m.value) for series, m in lasts]
    entries += [(sheet.key(level, line=True), across.end, level.value) for level in panel.levels]
    places = spread([up(value) for _, _, value in entries], 19, up.end - 6, up.start)
    digits = decimals(max((abs(value) for _, _, value in entries), default=1.0))
    parts, start = [], across.end + 22
    for (key, x, value), place in zip(entries, places, strict=True):
        elbow = path([(x + 4, up(value)), (across.end + 8, up(value)), (start - 6, place)])
        leader = tag("path", d=elbow, stroke="currentColor", fill="none", stroke_width=0.8, opacity="0.5")
        parts.append(tag("g", leader, class_=f"t{key.look.tone}", data_series=key.series))
        words = number(value, digits)
        parts.append(key_entry(key, start - 2, place + 4, 18, text_width(f"{key.name} {words}") + 34, words))
    return "".join(parts)
