"""Over all tasks that have results: performance profiles, interquartile means, probability of improvement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from naht.evaluation.statistics import Runs, improvement_over_tasks, iqm_over_tasks, profile
from naht.report.content import Answer, Cell, Figure, Finding, Mark, Panel, Series, Table, Verdict
from naht.study.book import Book, Missing, known, label, unseen
from naht.study.findings.common import BOTH

LEVELS = np.linspace(0.0, 1.2, 49)
"""Shares of what is possible at which profiles are drawn."""


def aggregate(books: Sequence[Book]) -> Finding | None:
    """Scores as shares of what is possible, over tasks; None if no task has them."""
    methods = (*BOTH, "poam-aht", "poam-imitating", "ippo-naht-imitating")
    scores: dict[tuple[str, str], list[list[float]]] = {}
    tasks: list[str] = []
    for book in books:
        try:
            if "normalised" not in book.plan.parts:
                continue
            found = {(m, w): book.shares(m, who) for m in methods for w, who in WHO.items()}
        except Missing:
            continue
        tasks.append(book.root.name)
        for at, runs in found.items():
            scores.setdefault(at, []).append(runs)
    if not tasks:
        return None
    panels = tuple(Panel(w, tuple(Series(label(m), _profile(scores[m, w]), m) for m in methods)) for w in WHO)
    rows: list[tuple[Cell, ...]] = []
    for m in methods:
        better = [
            improvement_over_tasks(scores[m, w], scores["ippo-naht", w]) if m != "ippo-naht" else None for w in WHO
        ]
        rows.append((label(m), *[iqm_over_tasks(scores[m, w]) for w in WHO], *better))
    chance = improvement_over_tasks(scores["poam", "teams never met"], scores["ippo-naht", "teams never met"])
    count = sum(len(runs) for runs in scores["poam", "teams never met"])
    answer: Answer = "holds" if chance.low > 0.5 else "does not hold" if chance.high < 0.5 else "undecided"
    verdict = Verdict(
        "Over tasks, a run of POAM is more likely than not to beat one of IPPO-NAHT with teams never met",
        answer,
        None,
        chance,
        (count, count),
    )
    return Finding(
        "aggregate",
        "All runs together",
        f"With teams never met, a run of POAM beats one of IPPO-NAHT with probability {chance.mean:.2f} "
        f"({chance.low:.2f} to {chance.high:.2f}), over {', '.join(tasks)}.",
        (Figure("lines", panels, "share of what is possible", "share of runs above it"),),
        (
            Table(
                "Interquartile means and probability of improvement on IPPO-NAHT",
                ("method", *[f"IQM, {w}" for w in WHO], *[f"P(better), {w}" for w in WHO]),
                tuple(rows),
                "high",
            ),
        ),
        (verdict,),
        "Scores are shares of what a best response to each team earns. Bands: 95 %, bootstrap of runs within tasks.",
    )


WHO = {"teams of training": known, "teams never met": unseen}


def _profile(runs: Runs) -> tuple[Mark, ...]:
    return tuple(
        Mark(float(at), found.mean, found.low, found.high)
        for at, found in zip(LEVELS, profile(runs, LEVELS.tolist()), strict=True)
    )
