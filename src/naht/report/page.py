"""A results page: one HTML file made from `content.Content`, which works from a disk, offline and on a phone.

What comes from data is escaped here and never becomes markup in the browser. Equal content gives equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from naht.errors import require
from naht.evaluation.statistics import Interval
from naht.report import charts
from naht.report.charts import NOTHING, tag
from naht.report.content import (
    MARKS,
    Answer,
    Content,
    Figure,
    Finding,
    Run,
    TaskFindings,
    Verdict,
    as_json,
)
from naht.report.packing import pack_episode
from naht.report.tables import figure_rows, headers, sortable, table_box, table_rows
from naht.storage import write_file

MOST_BYTES = 6_000_000
"""Of a page, so that it opens in a second."""

OVERALL = "overall"
"""Where links to findings over all tasks begin."""

QUESTIONS = {
    "Q1": "Does it beat the baselines?",
    "Q2": "Does it cope with strangers?",
    "Q3": "Do its ideas work?",
    "beyond": "What goes beyond the paper?",
}


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
        yield from ((OVERALL, finding) for finding in self.content.overall)
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
            parts.append(_section(OVERALL, "Over all tasks", *map(self._finding, self.content.overall)))
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
            parts.append(tag("div", sortable(self.content.lead, "lead", by_row=True), class_="lead"))
        return tag("section", *parts, id="answers", aria_label="In short")

    def _question(self, verdict: Verdict) -> str:
        link = self.links.get((verdict.question, verdict.claim)) or self.links.get((verdict.question, ""))
        one = verdict.difference is not None  # else there is nothing to put a link behind but the detail
        words = "task by task" if link and link.startswith(OVERALL) else "see the figure"
        more = [tag("a", words, href=f"#{link}")] if link else []
        name = tag("span", "+" if verdict.question == "beyond" else escape(verdict.question), class_="q")
        parts = [
            tag("h2", f"{name} {escape(QUESTIONS.get(verdict.question, ''))}"),
            tag("p", f"{_mark(verdict.answer)} {escape(verdict.claim)}", class_="claim"),
            _numbers(verdict, *more, short=True) if one else "",
            tag("p", " ".join([escape(verdict.detail), *([] if one else more)]), class_="detail"),
        ]
        return tag("li", *parts, class_="question")

    def _contents(self) -> str:
        """Every question, as links."""
        groups = [(anchor(t.task), t.title, t.findings) for t in self.content.tasks]
        if self.content.overall:
            groups.insert(0, (OVERALL, "Over all tasks", self.content.overall))

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
            parts.append(sortable(table, key))
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
        head = headers(zip(titles, classes, strict=True))
        table = tag("table", head, tag("tbody", *rows, ""), class_="sortable words")
        return _section("verdicts", "All verdicts", tag("p", words), table_box(table, "All verdicts"))

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
    table = tag("table", headers(zip(titles, classes, strict=True)), tag("tbody", *rows), class_="sortable runs")
    summary = tag("summary", f"The same in all runs of {escape(task.task)}")
    common = tag("details", summary, _settings(shared)) if shared else ""
    return tag("h3", escape(task.title)) + common + table_box(table, f"Runs of {task.task}")


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
