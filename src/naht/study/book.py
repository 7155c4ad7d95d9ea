"""The rows of a study, read when they are asked for, and the numbers that most findings start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from naht.errors import NahtError
from naht.evaluation.statistics import Interval, bootstrap_improvement, difference_interval, mean_interval
from naht.evaluation.tables import RETURN, WON
from naht.report.content import Answer, Mark, Published, Question, Verdict
from naht.study.nodes import DONE, Node
from naht.study.plan import METHODS, NAIVE, POPULATION_SEEDS, Plan
from naht.study.rows import Row, read_rows

VICTORY = 20.0
"""SMAC scales the rewards of a map so that this is what a victory pays."""

Strangers = Callable[[str], bool]
"""Which teams count, by name."""
Means = Mapping[tuple[str, int], float]
"""Returns, or win rates, by strangers and N."""


def anybody(name: str) -> bool:
    """Whoever it is: bots, whose names say nothing, as well."""
    del name
    return True


def of_seeds(*seeds: int) -> Strangers:
    """Teams of these seeds: seed 0 of every algorithm is who one trains with."""
    return lambda name: int(name.rsplit("seed", 1)[-1]) in seeds


def known(name: str) -> bool:
    return of_seeds(0)(name)


def unseen(name: str) -> bool:
    return not known(name)


def algorithm_of(name: str) -> str:
    return name.rsplit("-seed", 1)[0]


def of(*algorithms: str) -> Strangers:
    """Teams of these algorithms."""
    return lambda name: algorithm_of(name) in algorithms


def named(team: str) -> Strangers:
    return lambda name: name == team


def also(*conditions: Strangers) -> Strangers:
    """Teams that meet all of these."""
    return lambda name: all(fits(name) for fits in conditions)


class Missing(Exception):
    """A finding needs rows that are not there."""


class Book:
    """What a study has found so far."""

    def __init__(self, root: Path, plan: Plan, value: str = RETURN):
        self.root, self.plan, self.value = root, plan, value
        self._read: dict[tuple[str, str], list[Row]] = {}
        self._means: dict[str, Means] = {}

    @property
    def measure(self) -> str:
        """What scores are: returns, or how much was won."""
        return {RETURN: "return", WON: "win rate"}[self.value]

    @property
    def within(self) -> tuple[float, float]:
        """What scores can be."""
        return (0.0, 1.0) if self.value == WON else (-math.inf, math.inf)

    @cached_property
    def wins(self) -> Book | None:
        """The same book with shares of episodes that were won for returns; None where nothing can be won."""
        if not self.plan.battles:
            return None
        book = Book(self.root, self.plan, WON)
        book._read = self._read
        return book

    @property
    def seeds(self) -> range:
        return self.plan.request.trials

    def place(self, node: Node) -> Path:
        """Where the results of a node are; `Missing` if it is not done. Results that were passed on without a file that
        their world reads (a prey that is not ours to share) are the only ones of that name."""
        try:
            found = [node.place(self.root)]
        except NahtError:
            found = [path.parent for path in (self.root / "nodes" / node.name).glob(f"*/{DONE}")]
        if len(found) != 1 or not (found[0] / DONE).is_file():
            raise Missing(node.name)
        return found[0]

    def rows(self, node: Node, file: str = "rows.csv.gz") -> list[Row]:
        """The rows of a node; `Missing` if it is not done."""
        at = node.name, file
        if at not in self._read:
            self._read[at] = read_rows(self.place(node) / file)
        return self._read[at]

    def trials(
        self, method: str, who: Strangers = known, *, n: int | None = None, split: bool = False, everybody: bool = True
    ) -> list[float]:
        """A method's mean return with some strangers, one number per seed: the M-N score, or for one N only."""
        nodes = [self.plan.evaluation(method, s, split=split, everybody=everybody) for s in self.seeds]
        return [self.score(node, who, n) for node in nodes]

    def score(self, node: Node, who: Strangers, n: int | None = None) -> float:
        """What somebody earns with some strangers, on average over these and N."""
        if node.name not in self._means:
            self._means[node.name] = means(self.rows(node), self.value)
        return mean_of(self._means[node.name], who, n)

    def responses(self) -> dict[str, float]:
        """What a best response to each team earns with it: by team, its M-N score."""
        teams = [(a, s) for s in range(POPULATION_SEEDS) for a in NAIVE]
        return {f"{a}-seed{s}": self.score(self.plan.answer(a, s), anybody) for a, s in teams}

    def possible(self) -> dict[str, float]:
        """By team, what a best response to it earns or, in battles where none was trained, what a victory pays."""
        try:
            return self.responses()
        except Missing:
            if not self.plan.battles:
                raise
            return {f"{a}-seed{s}": VICTORY for s in range(POPULATION_SEEDS) for a in NAIVE}

    def shares(self, method: str, who: Strangers) -> list[float]:
        """A method's return with each of some strangers as a share of what is possible with it: means, per seed."""
        possible = {team: best for team, best in self.possible().items() if who(team)}
        found = [np.array(self.trials(method, named(team))) / best for team, best in possible.items()]
        return np.mean(found, axis=0).tolist()

    def naive(self, algorithm: str, seeds: Iterable[int] = range(1, 5)) -> list[float]:
        """The same for teams that were trained in self-play."""
        return [self.score(self.plan.naive(algorithm, s), known) for s in seeds]


def means(rows: Sequence[Row], value: str = RETURN) -> Means:
    """By strangers and N: studies have tens of thousands of rows, and ask for their means again and again."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        groups.setdefault((row["strangers"], row["n"]), []).append(row[value])
    return {at: float(np.mean(group)) for at, group in groups.items()}


def mean_of(found: Means, who: Strangers, n: int | None = None) -> float:
    """Mean over some strangers; strangers and N count equally, whatever the number of their rows."""
    chosen = [mean for (name, count), mean in found.items() if (n is None or count == n) and who(name)]
    if not chosen:
        raise Missing("rows of these strangers")
    return float(np.mean(chosen))


def label(method: str) -> str:
    """A method's name for people."""
    return METHODS[method].label if method in METHODS else method.upper()


def mark(x: float | str, trials: Sequence[float], paper: Published | None = None, note: str = "") -> Mark:
    """Mean and interval over seeds."""
    found = mean_interval(trials)
    return Mark(x, found.mean, found.low, found.high, tuple(trials), paper, note)


def higher(
    claim: str, ours: Sequence[float], theirs: Sequence[float], *, question: Question = "", detail: str = ""
) -> Verdict:
    """Is one sample of trials higher than another? Decided if 0 lies outside the interval of the difference."""
    if min(len(ours), len(theirs)) < 2:
        return Verdict(claim, "undecided", detail="one seed decides nothing", question=question)
    apart = difference_interval(ours, theirs)
    better = bootstrap_improvement(ours, theirs)
    seeds = len(ours), len(theirs)
    return Verdict(claim, _answer(apart), apart, better, seeds, detail, question)


def above_zero(claim: str, trials: Sequence[float], *, question: Question = "", detail: str = "") -> Verdict:
    """Is a difference that every trial has by itself above zero?"""
    if len(trials) < 2:
        return Verdict(claim, "undecided", detail="one seed decides nothing", question=question)
    found = mean_interval(trials)
    return Verdict(claim, _answer(found), found, None, (len(trials), len(trials)), detail, question)


def level(
    claim: str, ours: Sequence[float], theirs: Sequence[float], *, share: float = 0.1, question: Question = ""
) -> Verdict:
    """Are two samples about the same: does the difference's interval lie within a share of their mean?"""
    if min(len(ours), len(theirs)) < 2:
        return Verdict(claim, "undecided", detail="one seed decides nothing", question=question)
    apart, better = difference_interval(ours, theirs), bootstrap_improvement(ours, theirs)
    room = share * abs(float(np.mean([*ours, *theirs])))
    differs: Answer = "does not hold" if apart.low > 0 or apart.high < 0 else "undecided"
    answer: Answer = "holds" if -room <= apart.low and apart.high <= room else differs
    detail = f"level: within {share:.0%} of the mean"
    return Verdict(claim, answer, apart, better, (len(ours), len(theirs)), detail, question)


def _answer(apart: Interval) -> Answer:
    return "holds" if apart.low > 0 else "does not hold" if apart.high < 0 else "undecided"
