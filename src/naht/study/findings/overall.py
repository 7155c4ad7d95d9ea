"""Over all tasks that have results: the paper's claims, performance profiles, interquartile means, probability of
improvement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from naht.evaluation.statistics import Interval, Runs, improvement_over_tasks, iqm_over_tasks, profile
from naht.report.content import (
    MARKS,
    Answer,
    Cell,
    Figure,
    Finding,
    Mark,
    Panel,
    Question,
    Series,
    Table,
    TaskFindings,
    Verdict,
)
from naht.study.book import VICTORY, Book, Missing, Strangers, known, label, unseen
from naht.study.findings.common import BOTH


@dataclass(frozen=True)
class Claim:
    """What the paper says of several tasks."""

    said: str
    finding: str
    """Where its verdicts on each task are."""
    begins: tuple[str, ...]
    """How these verdicts begin."""
    among: Literal["any", "all"] = "all"
    """How many of them must hold on a task."""
    tasks: int | None = None
    """On how many tasks it is said to hold; None: on all."""
    question: Question = ""

    def on(self, task: TaskFindings) -> Answer:
        """What became of it on one task."""
        found = [
            v.answer
            for f in task.findings
            if f.name == self.finding
            for v in f.verdicts
            if v.claim.startswith(self.begins)
        ]
        if not found:
            return "not run"
        good, bad = found.count("holds"), found.count("does not hold")
        if good == len(found) or (self.among == "any" and good):
            return "holds"
        return "does not hold" if bad == len(found) or (self.among == "all" and bad) else "undecided"

    def over(self, answers: Sequence[Answer]) -> Answer:
        """And on all tasks on which it was asked."""
        return over_all(answers, self.tasks)


def over_all(answers: Sequence[Answer], tasks: int | None = None) -> Answer:
    """What becomes of a claim about so many tasks (None: about all of them), of those on which it was asked."""
    needed = len(answers) if tasks is None else min(tasks, len(answers))
    if answers.count("holds") >= needed:
        return "holds"
    return "does not hold" if len(answers) - answers.count("does not hold") < needed else "undecided"


CLAIMS = (
    Claim(
        "POAM beats IPPO-NAHT in final return or sample efficiency, on all tasks",
        "curves",
        ("POAM's final return is above IPPO-NAHT's", "POAM learns faster than IPPO-NAHT"),
        "any",
        question="Q1",
    ),
    Claim(
        "POAM's final return is above POAM-AHT's, on all tasks",
        "curves",
        ("POAM's final return is above POAM-AHT's",),
        question="Q1",
    ),
    Claim(
        "POAM's final return is above the best naive MARL's, on all tasks",
        "curves",
        ("POAM's final return is above the best naive",),
        question="Q1",
    ),
    Claim(
        "With teams never met, POAM is above IPPO-NAHT, on three tasks of five",
        "strangers",
        ("With teams never met, POAM is above",),
        tasks=3,
        question="Q2",
    ),
    Claim(
        "POAM and IPPO-NAHT do worse with strangers than with known teams, on all tasks",
        "strangers",
        ("POAM does worse with strangers", "IPPO-NAHT does worse with strangers"),
        question="Q2",
    ),
    Claim(
        "POAM and POAM-AHT are level at N = 1, on all tasks", "counts", ("POAM and POAM-AHT are level",), question="Q3"
    ),
    Claim("POAM is above POAM-AHT wherever N > 1, on all tasks", "counts", ("At N = ",), question="Q3"),
    Claim("Self-play is above cross-play, on all tasks", "crossplay", ("Self-play is above",)),
    Claim("Matched seeds are above mismatched ones, on all tasks", "crossplay", ("Matched seeds are above",)),
)


def claims(tasks: Sequence[TaskFindings]) -> Finding | None:
    """Each claim as the paper states it, of the tasks that have results; None if these are not several."""
    answers = {claim: [claim.on(task) for task in tasks] for claim in CLAIMS}
    shown = [i for i in range(len(tasks)) if any(found[i] != "not run" for found in answers.values())]
    if len(shown) < 2:
        return None
    rows: list[tuple[Cell, ...]] = []
    verdicts = []
    for claim, found in answers.items():
        asked = [a for a in found if a != "not run"]
        counted = f"{asked.count('holds')} of {len(asked)}"
        rows.append((claim.said, *[f"{MARKS[found[i]]} {found[i]}" for i in shown], counted))
        detail = f"holds on {counted} tasks, does not hold on {asked.count('does not hold')}"
        verdicts.append(Verdict(claim.said, claim.over(asked), detail=detail, question=claim.question))
    held = sum(v.answer == "holds" for v in verdicts)
    return Finding(
        "claims",
        "What became of the paper's claims?",
        f"Of {len(verdicts)} claims about several tasks, {held} hold as the paper states them.",
        tables=(
            Table(
                "What became of the paper's claims, by task",
                ("claim", *[tasks[i].task for i in shown], "holds on"),
                tuple(rows),
            ),
        ),
        verdicts=tuple(verdicts),
        made="A claim about all tasks holds if it does on each of them, and does not hold if on one of them it does "
        "not; each of these is decided by its own interval.",
    )


LEVELS = np.linspace(0.0, 1.2, 49)
"""Shares of what is possible at which profiles are drawn."""
COMPARED = (*BOTH, "poam-aht", "poam-imitating", "ippo-naht-imitating")
"""Methods of which all runs are taken together."""
WHO = {"teams of training": known, "teams never met": unseen}
Score = Callable[[Book, str, Strangers], list[float]]


@dataclass(frozen=True)
class Scores:
    """What all runs of the methods earn: by method and strangers, of every task its runs' scores."""

    tasks: tuple[str, ...]
    runs: dict[tuple[str, str], Runs]

    @staticmethod
    def of(books: Sequence[Book], score: Score) -> Scores:
        """Of the studies that have all of it."""
        runs: dict[tuple[str, str], list[list[float]]] = {(m, w): [] for m in COMPARED for w in WHO}
        tasks: list[str] = []
        for book in books:
            try:
                if "curves" not in book.plan.parts:
                    continue
                found = {(m, w): score(book, m, who) for m in COMPARED for w, who in WHO.items()}
            except Missing:
                continue
            tasks.append(book.root.name)
            for at, scores in found.items():
                runs[at].append(scores)
        return Scores(tuple(tasks), dict(runs))

    def profiles(self, levels: Sequence[float], x_label: str) -> Figure:
        def marks(runs: Runs) -> tuple[Mark, ...]:
            shares = zip(levels, profile(runs, levels), strict=True)
            return tuple(Mark(at, found.mean, found.low, found.high) for at, found in shares)

        panels = tuple(Panel(w, tuple(Series(label(m), marks(self.runs[m, w]), m) for m in COMPARED)) for w in WHO)
        return Figure("lines", panels, x_label, "share of runs above it", within=(0.0, 1.0))

    def improvement(self, method: str, who: str) -> Interval:
        """The probability that a run of the method beats one of IPPO-NAHT."""
        return improvement_over_tasks(self.runs[method, who], self.runs["ippo-naht", who])

    def table(self, title: str) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for m in COMPARED:
            better = [self.improvement(m, w) if m != "ippo-naht" else None for w in WHO]
            rows.append((label(m), *[iqm_over_tasks(self.runs[m, w]) for w in WHO], *better))
        columns = ("method", *[f"IQM, {w}" for w in WHO], *[f"P(better), {w}" for w in WHO])
        return Table(title, columns, tuple(rows), "high")


def aggregate(books: Sequence[Book]) -> Finding | None:
    """Scores as shares of what is possible, over tasks; None if no task has them. Of battles, also how many are won."""
    shares = Scores.of(books, Book.shares)
    if not shares.tasks:
        return None
    figures = [shares.profiles(LEVELS.tolist(), "share of what is possible")]
    tables = [shares.table("Interquartile means and probability of improvement on IPPO-NAHT")]
    wins = Scores.of([book.wins for book in books if book.wins is not None], Book.trials)
    if wins.tasks:
        figures.append(wins.profiles([at for at in LEVELS.tolist() if at <= 1], "win rate"))
        tables.append(wins.table(f"The same of win rates, over {', '.join(wins.tasks)}"))
    who = "teams never met"
    chance = shares.improvement("poam", who)
    count = sum(len(runs) for runs in shares.runs["poam", who])
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
        f"({chance.low:.2f} to {chance.high:.2f}), over {', '.join(shares.tasks)}.",
        tuple(figures),
        tuple(tables),
        (verdict,),
        "Scores are shares of what a best response to each team earns or, on maps where none were trained, of the "
        f"{VICTORY:g} that a victory pays. Bands: 95 %, bootstrap of runs within tasks.",
    )
