"""Teams among themselves, and by the number of agents that are ours."""

from __future__ import annotations

import numpy as np

from naht.evaluation.statistics import mean_interval
from naht.report.content import Cell, Figure, Finding, Panel, Series, Table
from naht.study.book import (
    Book,
    above_zero,
    higher,
    known,
    label,
    level,
    mark,
)
from naht.study.findings.common import (
    made,
    more_or_less,
    paper_number,
    with_wins,
)
from naht.study.plan import NAIVE

GROUPS = (*NAIVE, "poam-aht")


class _Meetings:
    """Scores of teams with each other, by group."""

    def __init__(self, book: Book):
        self.book = book
        found: dict[tuple[str, int, str, int], list[float]] = {}
        for r in book.rows(book.plan.meetings()):
            found.setdefault((r["ours"], r["our_team"], r["theirs"], r["their_team"]), []).append(r[book.value])
        self.met = {pair: float(np.mean(scores)) for pair, scores in found.items()}  # the mean over N in 1..M-1
        self.teams = {g: sorted({i for (ours, i, _, _) in self.met if ours == g}) for g in GROUPS}
        self.several = [g for g in NAIVE if len(self.teams[g]) > 1]

    def score(self, ours: str, theirs: str) -> list[float]:
        """By team of ours: with itself on the diagonal, else with those of theirs that it met."""
        result = []
        for i in self.teams[ours]:
            pairs = [
                v
                for (a, k, b, j), v in self.met.items()
                if (a, k, b) == (ours, i, theirs) and (ours != theirs or i == j)
            ]
            result.append(float(np.mean(pairs)))
        return result

    def mismatched(self, group: str) -> list[float]:
        """By team: with other seeds of its algorithm."""
        return [
            float(np.mean([v for (a, k, b, j), v in self.met.items() if (a, k, b) == (group, i, group) and j != i]))
            for i in self.teams[group]
        ]

    def others(self, ours: str) -> list[float]:
        """By team: with teams of other algorithms."""
        return np.mean([self.score(ours, theirs) for theirs in NAIVE if theirs != ours], axis=0).tolist()

    def lost_by_seed(self) -> list[float]:
        """By team: what it earns less with other seeds of its algorithm than with itself."""
        return [a - b for g in self.several for a, b in zip(self.score(g, g), self.mismatched(g), strict=True)]

    def lost_by_algorithm(self) -> list[float]:
        return [a - b for g in NAIVE for a, b in zip(self.score(g, g), self.others(g), strict=True)]

    def matrix(self) -> Figure:
        series = []
        for ours in GROUPS:
            marks = tuple(
                mark(label(theirs), self.score(ours, theirs), paper_number(self.book, "crossplay", ours, theirs))
                for theirs in GROUPS
            )
            series.append(Series(label(ours), marks, ours))
        caption = f"M-N scores ({self.book.measure}); on the diagonal, teams with themselves."
        return Figure("matrix", (Panel("", tuple(series)),), "with", "", caption)

    def seeds(self) -> Figure:
        dots = tuple(
            Series(
                name,
                tuple(mark(g.upper(), f(g), paper_number(self.book, "matching", g, name)) for g in self.several),
                name,
            )
            for name, f in (("matched", lambda g: self.score(g, g)), ("mismatched", self.mismatched))
        )
        return Figure(
            "dots",
            (Panel("", dots),),
            "algorithm",
            self.book.measure,
            "Seeds of the same algorithm.",
            within=self.book.within,
        )

    def table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for ours in GROUPS:
            cells = [mean_interval(self.score(ours, theirs)) for theirs in GROUPS]
            paper = paper_number(self.book, "crossplay", ours, "mean")
            rows.append((label(ours), *cells, mean_interval(self.others(ours)), paper))
        columns = ("", *[label(g) for g in GROUPS], "mean of others", "paper")
        title = "Cross-play" if self.book.measure == "return" else f"Cross-play, {self.book.measure}"
        return Table(title, columns, tuple(rows))


def crossplay(book: Book) -> Finding:
    """Who gets on with whom?"""
    meetings = with_wins(book, _Meetings)
    apart, lost = meetings[0].lost_by_algorithm(), meetings[0].lost_by_seed()
    verdicts = (
        above_zero("Self-play is above cross-play", apart),
        above_zero("Matched seeds are above mismatched ones", lost),
    )
    return Finding(
        "crossplay",
        "Do teams have conventions?",
        f"A team earns {np.mean(apart):.1f} less with teams of other algorithms than with itself, and "
        f"{np.mean(lost):.1f} less with other seeds of its own algorithm.",
        (*[m.matrix() for m in meetings], *[m.seeds() for m in meetings]),
        tuple(m.table() for m in meetings),
        verdicts,
        made(book, "crossplay", strangers="pairs of teams such that every seed takes part"),
    )


def _by_count(book: Book, method: str) -> dict[int, list[float]]:
    """A method's scores by N = 1..M, one number per seed."""
    own = [float(np.mean([r[book.value] for r in book.rows(book.plan.alone(method, s))])) for s in book.seeds]
    return {n: book.trials(method, known, n=n) for n in book.plan.counts} | {book.plan.env.spec.num_agents: own}


def _strangers_alone(book: Book) -> list[float]:
    """N = 0: one number per team of training."""
    rows = [r for r in book.rows(book.plan.nobody()) if known(r["strangers"])]
    names = sorted({r["strangers"] for r in rows})
    return [float(np.mean([r[book.value] for r in rows if r["strangers"] == name])) for name in names]


def _counts_figure(book: Book) -> Figure:
    m, series = book.plan.env.spec.num_agents, []
    for method in ("poam", "poam-aht"):
        marks = [mark(0.0, _strangers_alone(book), paper_number(book, "counts", method, "0"))]
        for n, found in _by_count(book, method).items():
            marks.append(mark(float(n), found, paper_number(book, "counts", method, "all" if n == m else str(n))))
        series.append(Series(label(method), tuple(marks), method))
    return Figure("lines", (Panel("", tuple(series)),), "controlled agents N", book.measure, within=book.within)


def _counts_table(book: Book) -> Table:
    zero = mean_interval(_strangers_alone(book))
    rows: list[tuple[Cell, ...]] = [
        (label(method), zero, *[mean_interval(found) for found in _by_count(book, method).values()])
        for method in ("poam", "poam-aht")
    ]
    columns = ("method", *[f"N = {n}" for n in range(book.plan.env.spec.num_agents + 1)])
    return Table(f"{book.measure.capitalize()} by N", columns, tuple(rows), "high")


def counts(book: Book) -> Finding:
    """Return by the number of controlled agents."""
    m, most = book.plan.env.spec.num_agents, book.plan.counts[-1]
    poam, aht = (_by_count(book, method) for method in ("poam", "poam-aht"))
    verdicts = [level("POAM and POAM-AHT are level at N = 1", poam[1], aht[1], question="Q3")]
    verdicts += [
        higher(f"At N = {n}, POAM is above POAM-AHT", poam[n], aht[n], question="Q3")
        for n in [*book.plan.counts[1:], m]
    ]
    return Finding(
        "counts",
        "Does it matter how many are ours?",
        f"With {most} of {m} agents ours, POAM earns {more_or_less(poam[most], aht[most])} than POAM-AHT; with one, "
        f"{more_or_less(poam[1], aht[1])}.",
        with_wins(book, _counts_figure),
        with_wins(book, _counts_table),
        tuple(verdicts),
        made(book, "counts") + " N = 0: the strangers among themselves; N = M: a method with itself.",
    )
