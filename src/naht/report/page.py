"""A results page: one HTML file made from `content.Content`, which works from a disk, offline and on a phone.

What comes from data is escaped here and never becomes markup in the browser. Equal content gives equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from naht.errors import require
from naht.evaluation.statistics import Interval
from naht.report import charts
from naht.report.charts import NOTHING, tag
from naht.report.content import (
    MARKS,
    Answer,
    Cell,
    Content,
    Episode,
    Figure,
    Finding,
    Mark,
    Published,
    Run,
    Table,
    TaskFindings,
    Verdict,
    as_json,
)
from naht.storage import write_file

MOST_BYTES = 6_000_000
"""Of a page, so that it opens in a second."""

QUESTIONS = {"Q1": "Does it beat the baselines?", "Q2": "Does it cope with strangers?", "Q3": "Do its ideas work?"}


def write_page(content: Content, path: Path) -> Path:
    """Write the page in one move."""
    page = page_html(content).encode()
    size = f"{len(page) / 1e6:.1f} MB"
    require(len(page) <= MOST_BYTES, f"the page would have {size}: at most 6 are good to open, so show fewer episodes")
    write_file(path, page)
    return path


def page_html(content: Content) -> str:
    """The page as text."""
    page = _Page(content)
    main, script = page.main(), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        title=escape(content.title),
        facts=_facts(content.facts),
        # Only our own script may run, whatever the data hold.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_asset("page.css") + charts.style(),
        main=main,
        data=script_json(page.data()),
        script=script,
    )


def _asset(name: str) -> str:
    return (resources.files("naht") / "assets" / "page" / name).read_text("utf-8")


def script_json(data: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element."""
    text = json.dumps(as_json(data), separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _facts(facts: Mapping[str, str]) -> str:
    entries = (tag("div", tag("dt", escape(k)), tag("dd", escape(v))) for k, v in facts.items())
    return tag("dl", *entries, class_="facts") if facts else ""


def anchor(*names: str) -> str:
    """What a deep link calls a part of the page: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-") or "part"


def _list(items: Iterable[str], class_: str = "") -> str:
    return tag("ul", *(tag("li", item) for item in items), "", class_=class_)


# Rows of figures and tables, for downloads and for what is said on hover.


def _short(value: Any) -> Any:
    """Six significant digits are more than any estimate has."""
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else as_json(value)


def _source(paper: Published) -> str:
    return f"{'read off ' * paper.read_off}{paper.where}"


def figure_rows(figure: Figure) -> dict[str, Any]:
    """A figure as one table: a row per mark and level."""
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

    rows = []
    for panel in figure.panels:
        for s in panel.series:
            rows += [[panel.title, s.name, s.method, *map(_short, cells(m))] for m in s.marks]
        for level in panel.levels:
            values = map(_short, (level.value, level.low, level.high))
            rows.append([panel.title, level.name, level.method, None, *values, *[None] * (len(columns) - 7)])
    return {"columns": columns, "rows": rows}


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
            row += [_short(part) for part in [*parts, None, None, None][: 1 + len(extra)]]
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


def _headers(titles: Iterable[tuple[str, str]]) -> str:
    """(title, class) of columns, each a button that sorts."""
    cells = (tag("th", tag("button", escape(t), type="button"), scope="col", class_=c) for t, c in titles)
    return tag("thead", tag("tr", *cells))


def _table_box(table: str, title: str, *below: str, **attributes: Any) -> str:
    """A table that scrolls within itself where the page is too narrow."""
    caption = tag("p", escape(title), class_="caption") if below and title else ""
    scroll = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=title or "Table")
    return tag("div", caption, scroll, *below, class_="table", **attributes)


def _table(table: Table, name: str, *, by_row: bool = False) -> str:
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
    head = _headers(zip(table.columns, classes, strict=True))
    body = tag("table", head, tag("tbody", *rows, ""), class_="sortable")
    tools = tag("p", tag("button", "Table as CSV", type="button", class_="csv"), class_="tools")
    return _table_box(body, table.title, tools, data_table=name)


# Verdicts.


def _mark(answer: Answer) -> str:
    return tag("span", tag("span", MARKS[answer], aria_hidden="true"), f" {answer}", class_=f"mark {anchor(answer)}")


def _seeds(verdict: Verdict) -> str:
    if verdict.seeds is None:
        return ""
    a, b = verdict.seeds
    return f"{a} seeds each" if a == b else f"{a} against {b} seeds"


def _difference(difference: Interval) -> str:
    text = charts.estimate(difference.mean, difference.low, difference.high, sign=True)
    return tag("span", tag("b", escape(text)), charts.glyph(difference), class_="difference")


def _chance(chance: Interval) -> str:
    return charts.estimate(chance.mean, chance.low, chance.high, most=2)


def _numbers(verdict: Verdict, *more: str, short: bool = False) -> str:
    """What decides a verdict, in a line."""
    parts = [_difference(verdict.difference)] if verdict.difference is not None else []
    parts += [tag("span", _seeds(verdict))] if verdict.seeds is not None else []
    if verdict.improvement is not None and not short:
        parts.append(tag("span", f"P(better) = {_chance(verdict.improvement)}"))
    return tag("p", " · ".join([*parts, *more]), class_="numbers")


def _verdict(verdict: Verdict) -> str:
    detail = tag("p", escape(verdict.detail), class_="detail") if verdict.detail else ""
    words = tag("div", tag("p", escape(verdict.claim), class_="claim"), _numbers(verdict), detail)
    return tag("li", _mark(verdict.answer), words, class_="verdict")


# The page.


class _Page:
    """Builds the parts in order and collects what the script needs."""

    def __init__(self, content: Content):
        self.content = content
        self.figures: dict[str, dict[str, Any]] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        self.links: dict[tuple[str, str], str] = {}
        """(question, claim) of a verdict -> the finding it stands in."""
        self.names: dict[int, str] = {}
        """Links of findings, by identity: two tasks may have findings that are equal."""
        for task, finding in self._findings():
            name = anchor(task, finding.name)
            while name in self.names.values():
                name += "-2"
            self.names[id(finding)] = name
            for verdict in finding.verdicts:
                self.links.setdefault((verdict.question, verdict.claim), name)
                self.links.setdefault((verdict.question, ""), name)
        everything = [figure for _, finding in self._findings() for figure in finding.figures]
        self.palette = charts.palette_of(charts.methods_in(everything))
        self.episodes = [episode for task in content.tasks for episode in task.episodes]

    def _findings(self) -> Iterator[tuple[str, Finding]]:
        yield from (("overall", finding) for finding in self.content.overall)
        for task in self.content.tasks:
            yield from ((task.task, finding) for finding in task.findings)

    def data(self) -> dict[str, Any]:
        """For the script; call it when all parts are built."""
        return {
            "figures": self.figures,
            "tables": self.tables,
            "episodes": [pack_episode(episode) for episode in self.episodes],
            "chartStyle": charts.style(standalone=True),
        }

    def main(self) -> str:
        parts = [self._first_screen(), self._contents()]
        if self.content.overall:
            parts.append(_section("overall", "Over all tasks", *map(self._finding, self.content.overall)))
        for task in self.content.tasks:
            title = f"{escape(task.title)} {tag('code', escape(task.task))}"
            parts.append(_section(anchor(task.task), title, *map(self._finding, task.findings)))
        if self.episodes:
            hint = "Episodes are picked, not random. Click an agent to see what it expects of its teammates."
            player = tag("div", "", class_="player", id="player")
            parts.append(_section("watch", "Watch episodes", tag("p", hint), player))
        return "".join([*parts, self._verdicts(), self._runs(), self._missing()])

    def _first_screen(self) -> str:
        questions = tag("ol", *map(self._question, self.content.headline), class_="questions")
        parts = [tag("div", questions if self.content.headline else "", HERO if self.episodes else "", class_="first")]
        if self.content.lead is not None:
            self.tables["lead"] = table_rows(self.content.lead)
            parts.append(tag("div", _table(self.content.lead, "lead", by_row=True), class_="lead"))
        return tag("section", *parts, id="answers", aria_label="In short")

    def _question(self, verdict: Verdict) -> str:
        link = self.links.get((verdict.question, verdict.claim)) or self.links.get((verdict.question, ""))
        more = [tag("a", "see the figure", href=f"#{link}")] if link else []
        name = tag("span", escape(verdict.question), class_="q")
        parts = [
            tag("h2", f"{name} {escape(QUESTIONS.get(verdict.question, ''))}"),
            tag("p", f"{_mark(verdict.answer)} {escape(verdict.claim)}", class_="claim"),
            _numbers(verdict, *more, short=True),
            tag("p", escape(verdict.detail), class_="detail") if verdict.detail else "",
        ]
        return tag("li", *parts, class_="question")

    def _contents(self) -> str:
        """Every question, as links."""
        groups = [(anchor(t.task), t.title, t.findings) for t in self.content.tasks]
        if self.content.overall:
            groups.insert(0, ("overall", "Over all tasks", self.content.overall))

        def entry(finding: Finding) -> str:
            said = dict.fromkeys(v.answer for v in finding.verdicts)
            words = {"title": ", ".join(said), "aria_label": ", ".join(said)}
            marks = tag("span", "".join(MARKS[a] for a in said), class_="marks", role="img", **words) if said else ""
            return f"{tag('a', escape(finding.question), href=f'#{self.names[id(finding)]}')} {marks}"

        lists = [
            tag("div", tag("h2", tag("a", escape(title), href=f"#{link}")), _list(map(entry, findings)))
            for link, title, findings in groups
        ]
        rest = {
            "watch": "Watch episodes",
            "verdicts": "All verdicts",
            "runs": "All runs",
            "missing": "What was not run",
        }
        links = [tag("a", title, href=f"#{link}") for link, title in rest.items() if link != "watch" or self.episodes]
        behind = tag("div", tag("h2", "Behind it"), _list(links))
        return tag("nav", *lists, behind, class_="contents", aria_label="Contents")

    def _finding(self, finding: Finding) -> str:
        name = self.names[id(finding)]
        parts = [
            tag("h3", tag("a", escape(finding.question), href=f"#{name}")),
            tag("p", escape(finding.answer), class_="answer"),
            tag("ul", *map(_verdict, finding.verdicts), class_="verdicts") if finding.verdicts else "",
        ]
        parts += [self._figure(f, _numbered(name, k), finding) for k, f in enumerate(finding.figures)]
        for k, table in enumerate(finding.tables):
            key = _numbered(f"{name}-table", k)
            self.tables[key] = table_rows(table)
            parts.append(_table(table, key))
        if finding.remarks:
            parts.append(_list(map(escape, finding.remarks), "remarks"))
        if finding.made:
            parts.append(tag("details", tag("summary", "How it was made"), tag("pre", escape(finding.made))))
        return tag("article", *parts, id=name, class_="finding")

    def _figure(self, figure: Figure, name: str, finding: Finding) -> str:
        self.figures[name] = {"kind": figure.kind} | figure_rows(figure)
        forms = [
            tag(
                "div", charts.draw(figure, name, width=width, palette=self.palette, title=finding.question), class_=form
            )
            for form, width in (("wide", charts.WIDE), ("narrow", charts.NARROW))
        ]
        buttons = [
            tag("button", text, type="button", class_=kind)
            for kind, text in (("svg", "Figure as SVG"), ("csv", "Rows as CSV"))
        ]
        caption = tag("figcaption", tag("span", escape(figure.caption)), tag("span", *buttons, class_="tools"))
        return tag("figure", *forms, caption, data_figure=name)

    def _verdicts(self) -> str:
        """All of them in one table."""
        classes = ("", "", "n", "n", "", "", "")
        titles = ("Claim", "Verdict", "Difference", "P(better)", "Seeds", "Task", "Question")
        rows = []
        for task, finding in self._findings():
            for v in finding.verdicts:
                d, p = v.difference, v.improvement
                cells = [
                    tag("th", tag("a", escape(v.claim), href=f"#{self.names[id(finding)]}"), scope="row"),
                    tag("td", _mark(v.answer)),
                    _sorted_cell(NOTHING if d is None else _difference(d), None if d is None else d.mean),
                    _sorted_cell(NOTHING if p is None else escape(_chance(p)), None if p is None else p.mean),
                    *(tag("td", escape(text)) for text in (_seeds(v), task, v.question or "ours")),
                ]
                rows.append(tag("tr", *cells))
        words = (
            "Verdicts are computed from the rows, never written. P(better) is the chance that a seed of the one beats "
            "a seed of the other; brackets and ± are 95 % intervals. Undecided is a result, too."
        )
        head = _headers(zip(titles, classes, strict=True))
        table = tag("table", head, tag("tbody", *rows, ""), class_="sortable words")
        return _section("verdicts", "All verdicts", tag("p", words), _table_box(table, "All verdicts"))

    def _runs(self) -> str:
        """Every run, folded. Settings that all runs of a task share are listed once."""
        tables = [_run_table(task) for task in self.content.tasks if task.runs]
        if not tables:
            return _section("runs", "All runs", tag("p", "No runs are listed."))
        total = sum(len(task.runs) for task in self.content.tasks)
        field = tag("input", type="search", class_="filter", placeholder="a name or a setting")
        search = tag("p", tag("label", "Show runs with ", field), " ", tag("span", "", class_="found", role="status"))
        summary = tag("summary", f"{total} runs with their settings")
        return _section("runs", "All runs", tag("details", summary, search, *tables))

    def _missing(self) -> str:
        tasks = self.content.tasks
        items = [f"{tag('b', escape(t.title))}: {escape(words)}" for t in tasks for words in t.missing]
        text = _list(items) if items else tag("p", "Everything that was planned was run.")
        return _section("missing", "What was not run", text)


def _section(name: str, title: str, *parts: str) -> str:
    return tag("section", tag("h2", title), *parts, id=name, class_="task")


def _numbered(name: str, k: int) -> str:
    return name if k == 0 else f"{name}-{k + 1}"


def _sorted_cell(text: str, value: float | None) -> str:
    sort = None if value is None or not math.isfinite(value) else f"{value:.9g}"
    return tag("td", text, class_="n", data_v=sort)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as 'algorithm.lr': '0.002'."""
    result: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(as_json(value), default=str)
    return result


def _settings(settings: Mapping[str, str]) -> str:
    return _list((tag("code", f"{escape(k)} = {escape(v)}") for k, v in settings.items()), "settings")


def _run_table(task: TaskFindings) -> str:
    settings = [_flat(run.settings) for run in task.runs]
    shared = {k: v for k, v in settings[0].items() if all(other.get(k) == v for other in settings)}
    classes = ("", "n", "n", "n", "")
    titles = ("Run", "Steps", "Time", "Return", "Settings that differ")
    rows = []
    for run, own in zip(task.runs, settings, strict=True):
        cells = [
            tag("th", escape(run.name), scope="row"),
            _sorted_cell(charts.large(run.steps), run.steps),
            _sorted_cell(_duration(run), run.seconds),
            _sorted_cell(charts.number(run.result), run.result),
            tag("td", _settings({k: v for k, v in own.items() if k not in shared})),
        ]
        rows.append(tag("tr", *cells))
    table = tag("table", _headers(zip(titles, classes, strict=True)), tag("tbody", *rows), class_="sortable runs")
    summary = tag("summary", f"The same in all runs of {escape(task.task)}")
    common = tag("details", summary, _settings(shared)) if shared else ""
    return tag("h3", escape(task.title)) + common + _table_box(table, f"Runs of {task.task}")


def _duration(run: Run) -> str:
    if run.seconds is None:
        return NOTHING
    minutes = round(run.seconds / 60)
    return f"{run.seconds:.0f} s" if minutes < 2 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


HERO = tag(
    "div",
    tag("div", tag("canvas", ""), class_="world"),
    tag(
        "p",
        tag("button", "", type="button", class_="play", aria_label="Play"),
        tag("span", "", class_="what"),
        tag("a", "Watch with beliefs", href="#watch", class_="more"),
        class_="bar",
    ),
    class_="hero",
    id="hero",
)


# Episodes.


def pack_episode(episode: Episode) -> dict[str, Any]:
    """An episode for the script: words as they are; numbers as small integers, compressed, in base64.

    `arrays` says what lies in `bytes`, one array after the other: [name, type, shape, low, high]. Every array is stored
    with time as its last axis, as differences from one step to the next (modulo the type's size): things that move
    little take little room. Int16 -32767..32767 stands for low..high and -32768 for nothing; the square root of
    a chance is a byte, so that small chances keep their digits; so is health.
    """
    steps = len(np.asarray(episode.actions))
    arrays = [("places", *_as_int16(episode.places)), ("running", *_as_int16(episode.running_return))]
    arrays += [(f"ghosts{k}", *_as_int16(b.places)) for k, b in enumerate(episode.beliefs) if b.places is not None]
    arrays.append(("actions", np.asarray(episode.actions).astype(np.uint8), []))
    if episode.health is not None:  # rounded up: nobody dies of it
        arrays.append(("health", np.ceil(255 * _share(episode.health)).astype(np.uint8), []))
    for k, beliefs in enumerate(episode.beliefs):
        arrays.append((f"chances{k}", np.rint(255 * np.sqrt(_share(beliefs.chances))).astype(np.uint8), []))
    for name, array, _ in arrays:
        frames = steps + (name in ("places", "running", "health"))
        require(len(array) == frames, f"'{name}' of an episode of {steps} steps has {len(array)} frames, not {frames}")
    return {
        "task": episode.task,
        "method": episode.method,
        "strangers": episode.strangers,
        "label": episode.label,
        "return": _short(float(episode.episode_return)),
        "steps": steps,
        "seats": episode.seats,
        "controlled": [bool(c) for c in episode.controlled],
        "kinds": episode.kinds,
        "radii": [_short(float(r)) for r in episode.radii],
        "bounds": [_short(float(b)) for b in episode.bounds],
        "actionNames": episode.action_names,
        "events": [[int(step), what] for step, what in episode.events],
        "beliefs": [{"seat": int(b.seat), "teammates": [int(t) for t in b.teammates]} for b in episode.beliefs],
        "arrays": [[name, a.dtype.name, [*a.shape[1:], a.shape[0]], *scale] for name, a, scale in arrays],
        "bytes": base64.b64encode(zlib.compress(b"".join(_over_time(a) for _, a, _ in arrays), 9)).decode(),
    }


def _share(values: Any) -> np.ndarray:
    return np.clip(np.nan_to_num(np.asarray(values, float)), 0, 1)


def _over_time(array: np.ndarray) -> bytes:
    """[T, ...] integers -> [..., T] differences."""
    differences = np.diff(array, axis=0, prepend=np.zeros_like(array[:1]))
    return np.moveaxis(differences, 0, -1).tobytes()


def _as_int16(given: Any) -> tuple[np.ndarray, list[float]]:
    """[T, ...] -> little-endian int16, and the numbers that -32767 and 32767 stand for; NaN becomes -32768."""
    values = np.asarray(given, float)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    high = high if high > low else low + 1.0
    scaled = np.rint((np.where(np.isfinite(values), values, low) - low) / (high - low) * 65534 - 32767)
    return np.where(np.isfinite(values), scaled, -32768).astype("<i2"), [low, high]
