"""Is one method better than another? Differences from rows of common episodes, with what is known about them.

Both methods meet the same worlds, teammates and seats (`evaluate_mn(..., common=True)`), so that none of these adds to
the difference. What is replicated is a trial, a training seed. Where a method has only one, the difference is one
between these very agents: then episodes are the unit, each paired with the same one of the other method.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from naht.agents.saved import Agent
from naht.envs.base import Environment
from naht.errors import require
from naht.evaluation.play import EpisodeRow, evaluate_mn
from naht.evaluation.statistics import (
    Interval,
    bootstrap_improvement,
    difference_interval,
    effect_size,
    group_means,
    stratified_interval,
)
from naht.evaluation.tables import WON, by_count, episode_return, strangers, win
from naht.teams.population import Member, Population


@dataclass(frozen=True)
class Difference:
    """One line of a comparison: ours minus theirs."""

    measure: Literal["return", "win rate"]
    num_controlled: str
    """N, or "all": the M-N score."""
    ours: float
    theirs: float
    difference: Interval
    effect: float
    """In standard deviations: of the trials (Hedges' g), or of the paired differences of episodes."""
    improvement: Interval
    """Probability that a trial of ours beats one of theirs (or an episode the paired one); ties count half."""
    unit: Literal["trials", "episodes"]
    """What the interval, the effect and the probability are over."""


def compare_rows(ours: Sequence[EpisodeRow], theirs: Sequence[EpisodeRow]) -> list[Difference]:
    """Ours minus theirs, in return and (where there is one) win rate, for every N and over all."""
    require(bool(ours) and bool(theirs), "a comparison needs episodes of both methods")
    played: dict[str, set[Hashable]] = {}
    for row in [*ours, *theirs]:
        played.setdefault(row.trial, set()).add(_occasion(row))
    same = all(occasions == played[ours[0].trial] for occasions in played.values())
    require(same, "not all trials played the same episodes: evaluate them with common=True")
    measures: dict[Literal["return", "win rate"], Callable[[EpisodeRow], float]] = {"return": episode_return}
    if all(WON in row.metrics for row in [*ours, *theirs]):
        measures["win rate"] = win
    found = []
    for measure, value in measures.items():
        for (label, a), (_, b) in zip(by_count(ours), by_count(theirs), strict=True):
            found.append(_difference(measure, label, a, b, value))
    return found


def _occasion(row: EpisodeRow) -> Hashable:
    """What two rows share if they are of the same world, teammates and seats."""
    return row.task, row.seed, row.num_controlled, row.episode, tuple(s if s[0] != "*" else "*" for s in row.seats)


def _difference(
    measure: Literal["return", "win rate"],
    label: str,
    ours: Sequence[EpisodeRow],
    theirs: Sequence[EpisodeRow],
    value: Callable[[EpisodeRow], float],
) -> Difference:
    a, b = (list(group_means(rows, lambda row: row.trial, value).values()) for rows in (ours, theirs))
    means = float(np.mean(a)), float(np.mean(b))
    if min(len(a), len(b)) >= 2:
        apart, better = difference_interval(a, b), bootstrap_improvement(a, b)
        return Difference(measure, label, *means, apart, effect_size(a, b), better, "trials")
    a_by, b_by = (group_means(rows, _occasion, value) for rows in (ours, theirs))
    strata: dict[Hashable, list[Hashable]] = {}
    for row in {_occasion(row): row for row in ours}.values():
        strata.setdefault((row.num_controlled, strangers(row)), []).append(_occasion(row))

    def over(paired: Callable[[float, float], float]) -> Interval:
        return stratified_interval([[paired(a_by[at], b_by[at]) for at in group] for group in strata.values()])

    pairs = np.array([a_by[at] - b_by[at] for at in a_by])
    spread = float(pairs.std(ddof=1)) if len(pairs) > 1 else 0.0
    effect = float(pairs.mean()) / spread if spread else 0.0
    better = over(lambda x, y: float(x > y) + 0.5 * (x == y))
    return Difference(measure, label, *means, over(lambda x, y: x - y), effect, better, "episodes")


def compare(
    env: Environment,
    ours: Sequence[Agent],
    theirs: Sequence[Agent],
    uncontrolled: Population,
    *,
    episodes: int = 128,
    seed: int = 0,
    num_controlled: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[list[Difference], list[EpisodeRow]]:
    """Play the agents of two methods in common episodes. Returns the differences, ours minus theirs, and all rows.

    Agents of a method are its trials (training seeds); `names` [ours, then theirs] label them in the rows.
    """
    labels = list(names or [f"{side}/{i}" for side, agents in (("ours", ours), ("theirs", theirs))
                            for i in range(len(agents))])  # fmt: skip
    rows = [
        evaluate_mn(
            env,
            Population([Member(agent.name, agent.policy, agent.params)]),
            uncontrolled,
            episodes=episodes,
            seed=seed,
            num_controlled=num_controlled,
            trial=label,
            common=True,
        )
        for agent, label in zip([*ours, *theirs], labels, strict=True)
    ]
    sides = [[row for part in side for row in part] for side in (rows[: len(ours)], rows[len(ours) :])]
    return compare_rows(*sides), [*sides[0], *sides[1]]
