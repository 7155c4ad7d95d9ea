"""Tables of a page: rows of figures and tables for downloads, numbers aligned at their points, columns that sort."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from naht.evaluation.statistics import Interval
from naht.report import charts
from naht.report.charts import NOTHING, tag
from naht.report.content import Cell, Figure, Mark, Published, Table, as_json


def short(value: Any) -> Any:
    """Six significant digits are more than any estimate has."""
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else as_json(value)


def _source(paper: Published) -> str:
    return f"{'read off ' * paper.read_off}{paper.where}"


def figure_rows(figure: Figure) -> dict[str, Any]:
    """A figure as one table: a row per mark and level. In `groups`, rows of a series are [panel, series, method, rows],
    so that what they share stands there once."""
    marks = [m for panel in figure.panels for series in panel.series for m in series.marks]
    seeds = max((len(m.trials) for m in marks), default=0)
    paper, notes = any(m.paper for m in marks), any(m.note for m in marks)
    columns = ["panel", "series", "method", figure.x_label, figure.y_label, "low", "high"]
    columns += [f"seed {k + 1}" for k in range(seeds)]
    columns += ["paper", "paper half width", "paper source"] * paper + ["note"] * notes

    def cells(m: Mark) -> list[Any]:
        theirs = [m.paper.mean, m.paper.half_width, _source(m.paper)] if m.paper else [None] * 3
        trials = [*m.trials, *[None] * (seeds - len(m.trials))]
        return [m.x, m.value, m.low, m.high, *trials, *theirs[: 3 * paper], *[m.note][:notes]]

    groups: list[list[Any]] = []
    for panel in figure.panels:
        groups += [[panel.title, s.name, s.method, [[*map(short, cells(m))] for m in s.marks]] for s in panel.series]
        for level in panel.levels:
            values = map(short, (level.value, level.low, level.high))
            rest = [None] * (len(columns) - 7)
            groups.append([panel.title, level.name, level.method, [[None, *values, *rest]]])
    return {"columns": columns, "groups": groups}


def table_rows(table: Table) -> dict[str, Any]:
    """A table in plain numbers: an estimate becomes four columns, a number of the paper's three."""
    columns: list[str] = []
    rows: list[list[Any]] = [[] for _ in table.rows]
    for k, name in enumerate(table.columns):
        cells = [row[k] for row in table.rows]
        extra = []
        if any(isinstance(c, Interval) for c in cells):
            extra = ["low", "high", "n"]
        elif any(isinstance(c, Published) for c in cells):
            extra = ["half width", "source"]
        columns += [name, *(f"{name} {what}" for what in extra)]
        for row, cell in zip(rows, cells, strict=True):
            parts: list[Any] = [cell]
            if isinstance(cell, Interval):
                parts = [cell.mean, cell.low, cell.high, cell.count]
            elif isinstance(cell, Published):
                parts = [cell.mean, cell.half_width, _source(cell)]
            row += [short(part) for part in [*parts, None, None, None][: 1 + len(extra)]]
    return {"columns": columns, "rows": rows}


# Tables.


def value_of(cell: Cell) -> float | None:
    """What a cell is sorted by, if it is a number."""
    value = cell.mean if isinstance(cell, (Interval, Published)) else cell
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if number else None  # type: ignore[arg-type]


def half_width(cell: Cell) -> float | None:
    half = cell.half_width if isinstance(cell, (Interval, Published)) else None
    return half if half is not None and math.isfinite(half) else None


def clear_best(cells: Sequence[Cell], best: str) -> int | None:
    """Which estimate is better than every other by more than the interval of their difference; None: none is."""
    found = [(i, c) for i, c in enumerate(cells) if isinstance(c, Interval) and math.isfinite(c.half_width)]
    if best == "no" or len(found) < 2:
        return None
    sign = 1 if best == "high" else -1
    (first, a), *others = sorted(found, key=lambda pair: -sign * pair[1].mean)
    clear = all(sign * (a.mean - b.mean) > math.hypot(a.half_width, b.half_width) for _, b in others)
    return first if clear else None


@dataclass(frozen=True)
class NumberText:
    """A number as it is printed, in parts that are aligned with those of its column."""

    whole: str
    """Digits before the point, with sign."""
    rest: str
    """The point and digits after it."""
    spread: str
    """'± 1.8'."""


def column_texts(cells: Iterable[Cell]) -> list[NumberText | None]:
    """As many digits as each one's interval allows; where there is none, as many as the largest of those needs."""
    cells = list(cells)
    plain = [abs(v) for c in cells if (v := value_of(c)) is not None and half_width(c) is None]
    usual = 0 if all(v == int(v) for v in plain) else charts.decimals(max(plain))

    def text(cell: Cell) -> NumberText | None:
        value, half = value_of(cell), half_width(cell)
        if value is None:
            return None
        places = charts.decimals(value, half) if half else usual
        printed = f"{cell:,}".replace("-", charts.MINUS) if isinstance(cell, int) else charts.number(value, places)
        about = "≈" if isinstance(cell, Published) and cell.read_off else ""
        whole, point, rest = printed.partition(".")
        spread = "" if half is None else f"± {charts.number(half, places)}"
        return NumberText(about + whole, point + rest, spread)

    return [text(cell) for cell in cells]


def _aligned(text: NumberText | None, column: Sequence[NumberText | None]) -> str:
    """Parts of fixed widths, so that points stand below each other."""
    if text is None:
        return tag("span", NOTHING, class_="none")
    parts = []
    for class_ in ("whole", "rest", "spread"):
        longest = max(len(getattr(other, class_)) for other in column if other is not None)
        width = longest - 0.5 * (class_ == "rest")  # a point is narrow
        if width > 0:
            parts.append(tag("span", getattr(text, class_), class_=class_, style=f"min-width:{width}ch"))
    return tag("span", *parts, class_="num")


def headers(titles: Iterable[tuple[str, str]]) -> str:
    """(title, class) of columns, each a button that sorts."""
    cells = (tag("th", tag("button", escape(t), type="button"), scope="col", class_=c) for t, c in titles)
    return tag("thead", tag("tr", *cells))


def table_box(table: str, title: str, *below: str, **attributes: Any) -> str:
    """A table that scrolls within itself where the page is too narrow."""
    caption = tag("p", escape(title), class_="caption") if below and title else ""
    scroll = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=title or "Table")
    return tag("div", caption, scroll, *below, class_="table", **attributes)


def sortable(table: Table, name: str, *, by_row: bool = False) -> str:
    """A sortable table. Columns of the paper's numbers are small and stand close to the one before."""
    columns = [[row[k] for row in table.rows] for k in range(len(table.columns))]
    texts = [column_texts(cells) for cells in columns]
    numeric = [any(text is not None for text in column) for column in texts]
    paper = [any(isinstance(c, Published) for c in cells) for cells in columns]
    classes = [" ".join(["n"] * a + ["paper"] * b) for a, b in zip(numeric, paper, strict=True)]
    if by_row:
        best = {(r, clear_best(row, table.best)) for r, row in enumerate(table.rows)}
    else:
        best = {(clear_best(cells, table.best), k) for k, cells in enumerate(columns)}  # type: ignore[misc]

    def cell(r: int, k: int) -> str:
        content = table.rows[r][k]
        if numeric[k] and not isinstance(content, str):
            text = _aligned(texts[k][r], texts[k])
        else:
            text = tag("span", NOTHING, class_="none") if content is None else escape(str(content))
        value = value_of(content)
        return tag(
            "td" if k else "th",
            text,
            scope=None if k else "row",
            class_=classes[k] + " best" * ((r, k) in best),
            data_v=None if value is None else f"{value:.9g}",
            title=charts.published(content) if isinstance(content, Published) else None,
        )

    rows = (tag("tr", *(cell(r, k) for k in range(len(columns)))) for r in range(len(table.rows)))
    head = headers(zip(table.columns, classes, strict=True))
    body = tag("table", head, tag("tbody", *rows, ""), class_="sortable")
    tools = tag("p", tag("button", "Table as CSV", type="button", class_="csv"), class_="tools")
    return table_box(body, table.title, tools, data_table=name)
