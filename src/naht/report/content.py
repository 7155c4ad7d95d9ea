"""What a results page says, as data: findings with figures, tables and verdicts, runs, and episodes to watch.

Nothing here computes or draws. Findings are made from rows (`naht.study`), pages are made from these. Everything is
plain data that `as_json` turns into JSON; numbers that do not exist are None, never NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import numpy as np

from naht.evaluation.statistics import Interval

Answer = Literal["holds", "does not hold", "undecided", "not run"]
MARKS: dict[Answer, str] = {"holds": "✓", "does not hold": "✗", "undecided": "?", "not run": "○"}
Question = Literal["", "Q1", "Q2", "Q3", "beyond"]
"""Which of the paper's three questions a claim belongs to, or that it goes beyond them; empty: neither."""


@dataclass(frozen=True)
class Published:
    """A number of the paper's."""

    mean: float
    half_width: float | None = None
    """Of its 95 % interval, where it was published."""
    read_off: bool = False
    """Read off a plot, so only about right."""
    where: str = ""
    """Table or figure of the paper."""


@dataclass(frozen=True)
class Mark:
    """One estimate in a figure."""

    x: float | str
    """A number on a numeric axis, or the name of a category."""
    value: float
    low: float | None = None
    high: float | None = None
    trials: tuple[float, ...] = ()
    """What the estimate is the mean of, one number per seed; shown as small dots."""
    paper: Published | None = None
    """The same in the paper; shown as an open mark."""
    note: str = ""
    """Said on hover, besides the numbers."""


@dataclass(frozen=True)
class Series:
    """Marks that belong together: a line with its band, or one dot per category."""

    name: str
    marks: tuple[Mark, ...]
    method: str = ""
    """Which method it is of, by its name in `naht list algorithms` or of the study: decides colour and dash."""
    shade: float | None = None
    """From 0 (light) to 1 (dark), where series are stages of one thing, such as agents kept during training."""


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare with."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    method: str = ""
    paper: bool = False


@dataclass(frozen=True)
class Panel:
    title: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True)
class Figure:
    """One idea. Panels are small multiples and share their axes unless `free` says otherwise."""

    kind: Literal["lines", "dots", "scatter", "matrix"]
    """Lines over a numeric axis with bands; dots with intervals over categories; points in the plane (a mark's x and
    value); a matrix (series are its rows, categories its columns)."""
    panels: tuple[Panel, ...]
    x_label: str
    y_label: str
    caption: str = ""
    free: bool = False
    """Panels have their own vertical axes."""
    within: tuple[float, float] = (-math.inf, math.inf)
    """What values can be, as rates 0 to 1: intervals end there."""


Cell = str | float | int | Interval | Published | None


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    best: Literal["high", "low", "no"] = "no"
    """Whether the best number of a column is marked, where it is better by more than its interval."""


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper's (or of ours) and what our rows say about it."""

    claim: str
    answer: Answer
    difference: Interval | None = None
    """What decides it: ours minus theirs."""
    improvement: Interval | None = None
    """Probability that a seed of the one beats a seed of the other."""
    seeds: tuple[int, int] | None = None
    detail: str = ""
    question: Question = ""


@dataclass(frozen=True)
class Finding:
    """A question, its answer in one line, and what it rests on."""

    name: str
    """A short word for links and --only."""
    question: str
    answer: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    made: str = ""
    """How it was made: a command in a line of its own, then seeds, episodes and what else matters."""
    remarks: tuple[str, ...] = ()
    """What else a reader should know: how it differs from the paper, and what we know about why."""


@dataclass(frozen=True)
class Beliefs:
    """What the agent in a seat thinks of its teammates, step by step."""

    seat: int
    teammates: tuple[int, ...]
    """Their seats, K of them."""
    chances: Any
    """[T, K, A] probability that it gives to each next action of each teammate; NaN once one of the two is dead."""
    places: Any = None
    """[T, K, 2] where it thinks they are, in the world's coordinates, NaN where it has no idea; None in worlds whose
    observations do not say."""


@dataclass(frozen=True)
class Episode:
    """One recorded episode of T steps in a world of E things, of which the first M are agents of the team."""

    task: str
    method: str
    strangers: str
    label: str
    """Why it was picked: typical, best, worst, changes its mind."""
    episode_return: float
    seats: tuple[str, ...]
    """Who sat where, M names."""
    controlled: tuple[bool, ...]
    kinds: tuple[str, ...]
    """What each of the E things is: predator, prey, obstacle, ally, enemy, player, food."""
    radii: tuple[float, ...]
    """Of the E things, in the world's coordinates."""
    bounds: tuple[float, float, float, float]
    """Left, bottom, right, top of what is worth showing."""
    places: Any
    """[T + 1, E, 2]."""
    running_return: Any
    """[T + 1]."""
    actions: Any
    """[T, M] int."""
    action_names: tuple[str, ...]
    events: tuple[tuple[int, str], ...] = ()
    """(step, what happened), for instance a catch."""
    outcome: str = ""
    """How it ended, where that is a word: won, lost."""
    health: Any = None
    """[T + 1, E] from 0 to 1, 0 also for what was taken; None where nobody can be hurt and nothing taken."""
    shield: Any = None
    """[T + 1, E] from 0 to 1; None where nobody has one."""
    aims: Any = None
    """[T, E] int: at whom of the E things each shot in a step, or tried to; -1: at nobody. None: nobody has weapons."""
    fired: Any = None
    """[T, E] bool: shot, and not only tried to."""
    units: tuple[str, ...] = ()
    """Of which type each of the E things is, where there are types: marine, stalker, zealot."""
    levels: tuple[int, ...] = ()
    """Of the E things, where they have levels. That is in worlds of cells, in which an agent sees a square."""
    sight: float | None = None
    """How far an agent sees; None: it sees everything."""
    reach: float | None = None
    """How far away, from centre to centre, somebody is whom an agent can hit."""
    ground: tuple[float, float, float, float] | None = None
    """Left, bottom, right, top of where one can go; None: everywhere."""
    beliefs: tuple[Beliefs, ...] = ()


@dataclass(frozen=True)
class Run:
    """One training run behind the page."""

    task: str
    name: str
    steps: int
    seconds: float | None
    settings: dict[str, Any]
    result: float | None = None
    """Return in fresh episodes at its end."""


@dataclass(frozen=True)
class TaskFindings:
    """Everything found on one task."""

    task: str
    title: str
    findings: tuple[Finding, ...]
    runs: tuple[Run, ...] = ()
    episodes: tuple[Episode, ...] = ()
    missing: tuple[str, ...] = ()
    """What was not run, in words."""


@dataclass(frozen=True)
class Content:
    """A whole page."""

    title: str
    tasks: tuple[TaskFindings, ...]
    overall: tuple[Finding, ...] = ()
    """Over all tasks: aggregates, and each claim as the paper states it."""
    headline: tuple[Verdict, ...] = ()
    """One per question Q1, Q2, Q3: what decides it, for the first screen."""
    lead: Table | None = None
    """Task by method, for the first screen."""
    facts: dict[str, str] = field(default_factory=dict)
    """Version, date of the rows, command."""


def as_json(value: Any) -> Any:
    """Plain data for `json.dumps`: arrays as lists, NaN and infinities as None."""
    if isinstance(value, Interval):
        return {"mean": as_json(value.mean), "low": as_json(value.low), "high": as_json(value.high), "n": value.count}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return as_json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value
