"""From a study's folder to the content of its page: every finding that its rows allow, and what they come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from naht.config import decode, encode, read_json
from naht.errors import require
from naht.evaluation.statistics import Interval, mean_interval
from naht.evaluation.tables import write_table
from naht.report.charts import draw, estimate
from naht.report.content import (
    MARKS,
    Answer,
    Cell,
    Content,
    Episode,
    Question,
    Run,
    Table,
    TaskFindings,
    Verdict,
)
from naht.report.episodes import read_episodes
from naht.report.tables import table_rows
from naht.storage import write_file
from naht.study.book import Book, Missing, label
from naht.study.findings import FINDINGS
from naht.study.findings.overall import aggregate, claims, over_all
from naht.study.nodes import Node, facts_of, in_order
from naht.study.paper import published
from naht.study.plan import NAIVE, Plan, Request, plan_of
from naht.study.works import Filming, Training
from naht.tasks import TASKS
from naht.version import __version__

REQUEST = "study.json"
"""In a study's folder: what was asked for last."""

TITLES = {"bit-game": "Bit game", "mpe-pp": "Predator-prey"}
"""What people call a task; the maps are called by their names."""

QUESTIONS: dict[Question, tuple[str, ...]] = {
    "Q1": ("curves",),
    "Q2": ("strangers",),
    "Q3": ("ucd", "counts"),
    "beyond": ("imitation",),
}
"""The paper's three questions (does POAM beat the baselines, does it cope with strangers, do its ideas work), what goes
beyond it, and the finding whose answer and first verdict stand for each: the first of these that there is."""


def studies_in(folder: Path) -> list[Path]:
    """The study of this folder, or those in it, a task each."""
    roots = [path.parent for path in (folder / REQUEST, *sorted(folder.glob(f"*/{REQUEST}"))) if path.is_file()]
    require(bool(roots), f"{folder} holds no study: it has no {REQUEST}")
    order = {task: place for place, task in enumerate(TASKS)}
    return sorted(roots, key=lambda root: order.get(root.name, len(order)))


def write_request(root: Path, request: Request) -> None:
    """Say in a study's folder what it is."""
    write_file(root / REQUEST, (json.dumps(encode(request), indent=1) + "\n").encode())


def plan_in(root: Path) -> Plan:
    """The plan of the study that was asked for last."""
    request = decode(read_json(root / REQUEST))
    require(isinstance(request, Request), f"{root / REQUEST} does not hold a study's request")
    return plan_of(request)


def content_of(folder: Path) -> Content:
    """Everything that the studies in a folder have found so far."""
    books = [Book(root, plan_in(root)) for root in studies_in(folder)]
    tasks = tuple(_task(book) for book in books)
    names = ", ".join(dict.fromkeys(book.plan.request.task_name for book in books))
    return Content(
        title=f"N-agent ad hoc teamwork: {names}",
        tasks=tasks,
        overall=tuple(f for f in (claims([t for t in tasks if t.task in TASKS]), aggregate(books)) if f is not None),
        headline=tuple(headlines(tasks)),
        lead=_lead(books),
        facts={"naht": __version__, "made with": f"naht report {folder.name}"},
    )


def _task(book: Book) -> TaskFindings:
    findings, missing = [], []
    for part in (*book.plan.parts, *book.plan.further):
        if part not in FINDINGS:
            continue
        try:
            findings.append(FINDINGS[part](book))
        except Missing as e:
            missing += [f"{part}: {e} is not there yet"] if part in book.plan.asked else []
    request = book.plan.request
    settings = "" if request.preset == "tuned" else f", preset {request.preset}"
    settings += f", prey {request.prey}" if request.prey else ""
    title = f"{TITLES.get(request.task_name, request.task_name)}: {request.seeds} seeds, {request.run_steps:,} steps"
    order = {name: place for place, name in enumerate(FINDINGS)}
    shown = tuple(sorted(findings, key=lambda f: order[f.name]))
    return TaskFindings(book.root.name, title + settings, shown, _runs(book), _episodes(book), tuple(missing))


def write_findings(task: TaskFindings, folder: Path) -> None:
    """Every figure of a task as SVG and every table as CSV, in `figures` and `tables`."""
    for finding in task.findings:
        for i, figure in enumerate(finding.figures):
            name = finding.name if i == 0 else f"{finding.name}-{i + 1}"
            picture = draw(figure, name, standalone=True, title=finding.question)
            write_file(folder / "figures" / f"{name}.svg", picture.encode())
        for i, table in enumerate(finding.tables):
            name = finding.name if i == 0 else f"{finding.name}-{i + 1}"
            plain = table_rows(table)
            write_table(folder / "tables" / f"{name}.csv", plain["columns"], plain["rows"])


def _runs(book: Book) -> tuple[Run, ...]:
    runs = []
    every = book.plan.parts | book.plan.further
    for node in in_order(n for part in every.values() for n in part):
        if isinstance(node.work, Training):
            with suppress(Missing):
                runs.append(_run(book, node))
    return tuple(runs)


def _run(book: Book, node: Node) -> Run:
    facts, tests = facts_of(book.place(node)), book.rows(node, "tests.csv.gz")
    settings: dict[str, Any] = facts["identity"]["run"]
    last = tests[-1]["test/return"] if tests else None
    return Run(book.root.name, node.name.removeprefix("train/"), facts["size"], facts["seconds"], settings, last)


def _episodes(book: Book) -> tuple[Episode, ...]:
    shown: list[Episode] = []
    for node in (n for part in book.plan.parts.values() for n in part if isinstance(n.work, Filming)):
        with suppress(Missing):
            shown += [replace(e, method=label(e.method)) for e in read_episodes(book.place(node) / "episodes.json.gz")]
    return tuple(shown)


def headlines(tasks: Sequence[TaskFindings]) -> list[Verdict]:
    """One answer to each question; that the paper's own were not run is said, too."""
    answers = [_together(question, tasks) for question in QUESTIONS]
    return [v for v in answers if v.question != "beyond" or v.answer != "not run"]


def _together(question: Question, tasks: Sequence[TaskFindings]) -> Verdict:
    """One answer to a question: what its finding says, decided by its first verdict on each task. Over several tasks
    that is a claim about all of them."""
    found = {f.name for task in tasks for f in task.findings}
    name = next((name for name in QUESTIONS[question] if name in found), QUESTIONS[question][0])
    leading = {task.task: f for task in tasks for f in task.findings if f.name == name}
    every = [v for task in tasks for f in task.findings for v in f.verdicts if v.question == question]
    if not every or not leading:
        return Verdict(f"Not run: the part '{name}'", "not run", question=question)
    answers = [v.answer for v in every]
    kinds: dict[Answer, str] = {"holds": "hold", "does not hold": "do not", "undecided": "undecided"}
    counted = ", ".join(f"{answers.count(a)} {word}" for a, word in kinds.items() if a in answers)
    belonging = f"Claims that belong to this question: {counted}."
    firsts = {name: finding.verdicts[0] for name, finding in leading.items()}
    if len(firsts) == 1:
        ((task_name, first),) = firsts.items()
        # The answer of a finding that stands in is about more than its first verdict.
        said = leading[task_name].answer if name == QUESTIONS[question][0] else f"{first.claim}."
        return Verdict(said, first.answer, first.difference, first.improvement, first.seeds, belonging, question)
    claim = next(iter(firsts.values())).claim
    each: list[Answer] = [v.answer for v in firsts.values()]
    by_task = ", ".join(f"{task} {MARKS[v.answer]} {_apart(v)}".rstrip() for task, v in firsts.items())
    said = f"{claim} on {each.count('holds')} of {len(each)} tasks."
    return Verdict(said, over_all(each), detail=f"{by_task}. {belonging}", question=question)


def _apart(verdict: Verdict) -> str:
    """The difference that decided a verdict, in words."""
    found = verdict.difference
    return "" if found is None else estimate(found.mean, found.low, found.high, sign=True)


def _lead(books: Sequence[Book]) -> Table | None:
    """Study by method: final returns with the teams of training, the paper's beside them, and what goes beyond it."""
    methods, beyond = ("poam", "ippo-naht", "poam-aht", "naive"), "poam-imitating"
    rows: list[tuple[Cell, ...]] = []
    for book in books:
        if "curves" not in book.plan.parts:
            continue
        ours = [_final(book, m) for m in methods]
        if any(found is not None for found in ours):
            papers = [published(book.plan.request.task_name, "curves", m, "final") for m in methods]
            pairs = [cell for pair in zip(ours, papers, strict=True) for cell in pair]
            rows.append((book.root.name, *pairs, _final(book, beyond)))
            if book.wins is not None:
                won = [cell for m in methods for cell in (_final(book.wins, m), None)]
                rows.append((f"{book.root.name}, win rate", *won, _final(book.wins, beyond)))
    columns = ["task", *[c for m in methods for c in (label(m) if m != "naive" else "best naive", "paper")]]
    columns.append(label(beyond))
    return Table("Final return with the teams of training", tuple(columns), tuple(rows), "high") if rows else None


def _final(book: Book, method: str) -> Interval | None:
    """A method's final return, or the best naive one; None where it was not run."""
    try:
        if method == "naive":
            return max((mean_interval(book.naive(a)) for a in NAIVE), key=lambda found: found.mean)
        return mean_interval(book.trials(method, everybody="pair" not in book.plan.asked))
    except Missing:
        return None
