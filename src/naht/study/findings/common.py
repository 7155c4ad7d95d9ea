"""What several findings share: curves, dots by strangers, tables, and how things were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from naht.evaluation.statistics import mean_interval
from naht.evaluation.tables import RETURN
from naht.report.content import Cell, Figure, Level, Panel, Published, Series, Table
from naht.study.book import Book, Strangers, also, known, label, mark, of, unseen
from naht.study.paper import published
from naht.study.plan import NAIVE

BOTH = ("poam", "ippo-naht")
T = TypeVar("T")


def with_wins(book: Book, make: Callable[[Book], T]) -> tuple[T, ...]:
    """What is made of returns and, of tasks that are won or lost, the same of win rates."""
    return (make(book), make(book.wins)) if book.wins is not None else (make(book),)


def said_wins(book: Book, *methods: str, who: Strangers = known) -> str:
    """A sentence on how often these win; empty where nothing can be won."""
    if book.wins is None:
        return ""
    shares = [f"{label(m)} {np.mean(book.wins.trials(m, who)):.0%}" for m in methods]
    return f" Of the battles, {', '.join(shares)} are won."


def more_or_less(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """In words, for answers."""
    apart = float(np.mean(ours) - np.mean(theirs))
    return f"{abs(apart):.1f} {'more' if apart >= 0 else 'less'}"


def made(book: Book, part: str, *, strangers: str = "the teams of training") -> str:
    """The command, and in a further line what it does."""
    r = book.plan.request
    command = f"naht reproduce {r.task_name} --only {part} --seeds {r.seeds} --steps {r.run_steps} --preset {r.preset}"
    command += f" --episodes {r.episodes}" + (f" --prey {r.prey}" if r.prey else "")
    return (
        f"{command}\nLast agents of {r.seeds} seeds, greedy, in {r.episodes} episodes with each stranger and N, the "
        f"same worlds and seats for all methods; {strangers}. Intervals: 95 %, Student's t over seeds; differences: "
        "Welch."
    )


def paper_number(book: Book, part: str, method: str, at: str) -> Published | None:
    """The paper's number on this task, if it has one; it has returns only."""
    return published(book.plan.request.task_name, part, method, at) if book.value == RETURN else None


def curve(book: Book, method: str) -> Series:
    """Mean and 95 % band of the greedy tests over seeds."""
    tests, value = [book.rows(book.plan.training(method, s), "tests.csv.gz") for s in book.seeds], f"test/{book.value}"
    marks = [mark(float(at[0]["step"]), [row[value] for row in at]) for at in zip(*tests, strict=False)]
    return Series(label(method), tuple(marks), method)


def learning(book: Book, methods: Sequence[str], levels: Sequence[Level] = ()) -> Figure:
    """Learning curves."""
    panel = Panel("", tuple(curve(book, m) for m in methods), tuple(levels))
    return Figure("lines", (panel,), "environment steps", f"greedy test {book.measure}", within=book.within)


def area(book: Book, method: str) -> list[float]:
    """Mean test return over the whole run, per seed: the area under its curve by its length."""
    tests = [book.rows(book.plan.training(method, s), "tests.csv.gz") for s in book.seeds]
    areas = []
    for rows in tests:
        steps, values = (np.array([row[name] for row in rows], float) for name in ("step", "test/return"))
        whole = np.concatenate([[0.0], steps])
        areas.append(float(np.trapezoid(np.concatenate([values[:1], values]), whole) / whole[-1]))
    return areas


def by_algorithm(book: Book, method: str, who: Strangers, part: str, at: str, *, split: bool = False) -> Series:
    """A dot for the strangers of every algorithm, and one for all of them."""
    marks = []
    algorithms = [a for a in NAIVE if any(who(f"{a}-seed{s}") for s in range(5))]
    for a in algorithms:
        chosen = book.trials(method, also(who, of(a)), split=split)
        marks.append(mark(a.upper(), chosen, paper_number(book, part, method, f"{at}{a}")))
    marks.append(mark("all", book.trials(method, who, split=split)))
    return Series(label(method), tuple(marks), method)


def dots(book: Book, panels: Sequence[Panel], x_label: str = "") -> Figure:
    """Scores by category."""
    return Figure("dots", tuple(panels), x_label, book.measure, within=book.within)


def table_of(panels: Sequence[Panel], title: str) -> Table:
    """The numbers of a figure of dots: a row per series, a column per category."""
    categories = list(dict.fromkeys(m.x for p in panels for s in p.series for m in s.marks))
    rows: list[tuple[Cell, ...]] = []
    for panel in panels:
        for s in panel.series:
            found = {m.x: m for m in s.marks}
            cells: list[Cell] = []
            for c in categories:
                m = found.get(c)
                cells.append(None if m is None else mean_interval(m.trials) if m.trials else m.value)
            rows.append((f"{s.name}, {panel.title}" if len(panels) > 1 else s.name, *cells))
    return Table(title, ("method", *map(str, categories)), tuple(rows), "high")


def compared(book: Book, methods: Sequence[str], part: str, at: str = "final") -> tuple[Panel, ...]:
    """Panels: teams of training, teams never met (where the method can play with them); a dot per method."""
    panels = []
    for title, who in (("teams of training", known), ("teams never met", unseen)):
        series = []
        for m in methods:
            if who is unseen and "told" in m:
                continue
            paper = paper_number(book, part, m, at) if who is known else None
            series.append(Series(label(m), (mark(label(m), book.trials(m, who), paper),), m))
        panels.append(Panel(title, tuple(series)))
    return tuple(panels)


def scores_table(book: Book, methods: Sequence[str], title: str) -> Table:
    """Scores with the teams of training, with others, and by N. The title is about what they are scores of."""
    counts = book.plan.counts
    rows: list[tuple[Cell, ...]] = []
    for m in methods:
        by_n = [mean_interval(book.trials(m, known, n=n)) for n in counts]
        stranger = None if "told" in m else mean_interval(book.trials(m, unseen))
        rows.append((label(m), mean_interval(book.trials(m)), stranger, *by_n))
    columns = ("method", "teams of training", "teams never met", *[f"N = {n}, training" for n in counts])
    return Table(f"{book.measure.capitalize()} {title}", columns, tuple(rows), "high")
