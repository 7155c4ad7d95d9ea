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
    RETURN,
    made,
    more_or_less,
    paper_number,
)
from naht.study.plan import NAIVE


def _met(book: Book) -> dict[tuple[str, int, str, int], float]:
    """Mean return of every meeting: of N in 1..M-1."""
    found: dict[tuple[str, int, str, int], list[float]] = {}
    for r in book.rows(book.plan.meetings()):
        found.setdefault((r["ours"], r["our_team"], r["theirs"], r["their_team"]), []).append(r["return"])
    return {pair: float(np.mean(returns)) for pair, returns in found.items()}


def crossplay(book: Book) -> Finding:
    """Who gets on with whom?"""
    met = _met(book)
    groups = [*NAIVE, "poam-aht"]
    teams = {g: sorted({i for (ours, i, _, _) in met if ours == g}) for g in groups}

    def score(ours: str, theirs: str) -> list[float]:
        """By team of ours: with itself on the diagonal, else with those of theirs that it met."""
        result = []
        for i in teams[ours]:
            pairs = [
                v for (a, k, b, j), v in met.items() if (a, k, b) == (ours, i, theirs) and (ours != theirs or i == j)
            ]
            result.append(float(np.mean(pairs)))
        return result

    def mismatched(group: str) -> list[float]:
        return [
            float(np.mean([v for (a, k, b, j), v in met.items() if (a, k, b) == (group, i, group) and j != i]))
            for i in teams[group]
        ]

    table: list[tuple[Cell, ...]] = []
    series = []
    for ours in groups:
        others = np.mean([score(ours, theirs) for theirs in NAIVE if theirs != ours], axis=0).tolist()
        cells = [score(ours, theirs) for theirs in groups]
        paper = paper_number(book, "crossplay", ours, "mean")
        table.append((label(ours), *[mean_interval(c) for c in cells], mean_interval(others), paper))
        marks = tuple(
            mark(label(theirs), c, paper_number(book, "crossplay", ours, theirs))
            for theirs, c in zip(groups, cells, strict=True)
        )
        series.append(Series(label(ours), marks, ours))
    several = [g for g in NAIVE if len(teams[g]) > 1]
    dots = tuple(
        Series(
            name,
            tuple(mark(g.upper(), f(g), paper_number(book, "matching", g, name)) for g in several),
            name,
        )
        for name, f in (("matched", lambda g: score(g, g)), ("mismatched", mismatched))
    )
    lost = [a - b for g in several for a, b in zip(score(g, g), mismatched(g), strict=True)]
    apart = [
        a - b
        for g in NAIVE
        for a, b in zip(score(g, g), np.mean([score(g, o) for o in NAIVE if o != g], axis=0), strict=True)
    ]
    verdicts = (
        above_zero("Self-play is above cross-play", apart),
        above_zero("Matched seeds are above mismatched ones", lost),
    )
    return Finding(
        "crossplay",
        "Do teams have conventions?",
        f"A team earns {np.mean(apart):.1f} less with teams of other algorithms than with itself, and "
        f"{np.mean(lost):.1f} less with other seeds of its own algorithm.",
        (
            Figure(
                "matrix", (Panel("", tuple(series)),), "with", "", "M-N scores; on the diagonal, teams with themselves."
            ),
            Figure("dots", (Panel("", dots),), "algorithm", RETURN, "Seeds of the same algorithm."),
        ),
        (Table("Cross-play", ("", *[label(g) for g in groups], "mean of others", "paper"), tuple(table)),),
        verdicts,
        made(book, "crossplay", strangers="pairs of teams such that every seed takes part"),
    )


def counts(book: Book) -> Finding:
    """Return by the number of controlled agents."""
    m = book.plan.env.spec.num_agents
    nobody = book.rows(book.plan.nobody())
    zero = [
        float(np.mean([r["return"] for r in nobody if r["strangers"] == name]))
        for name in sorted({r["strangers"] for r in nobody})
        if known(name)
    ]
    series, by_method = [], {}
    for method in ("poam", "poam-aht"):
        own = [float(np.mean([r["return"] for r in book.rows(book.plan.alone(method, s))])) for s in book.seeds]
        trials = {n: book.trials(method, known, n=n) for n in book.plan.counts} | {m: own}
        by_method[method] = trials
        marks = [mark(0.0, zero, paper_number(book, "counts", method, "0"))]
        for n, found in trials.items():
            at = "all" if n == m else str(n)
            marks.append(mark(float(n), found, paper_number(book, "counts", method, at)))
        series.append(Series(label(method), tuple(marks), method))
    verdicts = [
        level("POAM and POAM-AHT are level at N = 1", by_method["poam"][1], by_method["poam-aht"][1], question="Q3")
    ]
    verdicts += [
        higher(f"At N = {n}, POAM is above POAM-AHT", by_method["poam"][n], by_method["poam-aht"][n], question="Q3")
        for n in [*book.plan.counts[1:], m]
    ]
    rows: list[tuple[Cell, ...]] = [
        (label(method), mean_interval(zero), *[mean_interval(found) for found in trials.values()])
        for method, trials in by_method.items()
    ]
    most = book.plan.counts[-1]
    return Finding(
        "counts",
        "Does it matter how many are ours?",
        f"With {most} of {m} agents ours, POAM earns "
        f"{more_or_less(by_method['poam'][most], by_method['poam-aht'][most])} than POAM-AHT; with one, "
        f"{more_or_less(by_method['poam'][1], by_method['poam-aht'][1])}.",
        (Figure("lines", (Panel("", tuple(series)),), "controlled agents N", RETURN),),
        (
            Table(
                "Return by N",
                ("method", "N = 0", *[f"N = {n}" for n in (*book.plan.counts, m)]),
                tuple(rows),
                "high",
            ),
        ),
        tuple(verdicts),
        made(book, "counts") + " N = 0: the strangers among themselves; N = M: a method with itself.",
    )
