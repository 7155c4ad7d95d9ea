"""Who gets on with whom: every team of a population meets others, all meetings in a few large batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.envs.base import Environment, side_by_side
from naht.errors import require
from naht.evaluation.play import MAX_PARALLEL, plain_errors, play_episodes
from naht.evaluation.statistics import Interval, mean_interval
from naht.rollout import Arena
from naht.teams.population import Population
from naht.teams.sampler import Team, team_sampler

Meeting = tuple[int, int]
"""Two members of a population by index: N agents of the first play with M - N of the second."""


def play_meetings(
    env: Environment,
    population: Population,
    meetings: Sequence[Meeting],
    *,
    episodes: int = 128,
    num_controlled: Iterable[int] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Returns of `episodes` episodes in random slots per meeting and N (default: 1..M-1): [meetings, N, episodes]."""
    m = env.spec.num_agents
    counts = list(range(1, m) if num_controlled is None else num_controlled)
    require(episodes >= 1, f"episodes is {episodes}: it must be at least 1")
    rng = np.random.default_rng(seed)
    shape = (len(meetings), len(counts), episodes)
    ours, theirs = np.asarray(meetings, np.int32).reshape(-1, 2).T
    place = rng.random((*shape, m)).argsort(-1)
    controlled = (place < np.asarray(counts)[None, :, None, None]).reshape(-1, m)
    who = [np.repeat(side, len(counts) * episodes)[:, None] for side in (ours, theirs)]
    member = np.where(controlled, *who).astype(np.int32)

    # The last batch is filled up with copies of its first episodes: one program for all batches.
    total = len(member)
    size = min(side_by_side(env, MAX_PARALLEL), total)
    devices = max(d for d in range(1, jax.device_count() + 1) if size % d == 0)
    arena = Arena(env, team_sampler(m, len(population)), population.roster, population.roster, size // devices)
    returns = np.empty(total)
    for start in range(0, total, size):
        chosen = np.arange(start, start + size) % total
        team = Team(jnp.asarray(controlled[chosen]), jnp.asarray(member[chosen]))
        key = jax.random.fold_in(jax.random.key(seed), start)
        with plain_errors():
            done = jax.device_get(play_episodes(arena, population.params, population.params, key, devices, team))
        count = min(size, total - start)
        returns[start : start + count] = done.episode_return[:count]
    return returns.reshape(shape)


@dataclass(frozen=True)
class CrossPlay:
    """M-N scores of every group of teams with every other, over pairs of seeds."""

    groups: tuple[str, ...]
    scores: dict[tuple[str, str], tuple[float, ...]]
    """By (ours, theirs): one M-N score per pair of seeds. On the diagonal every team meets itself."""
    advantages: tuple[float, ...]
    """By member: its score with itself, minus its mean score in meetings with other groups."""

    def cell(self, ours: str, theirs: str) -> Interval:
        return mean_interval(self.scores[ours, theirs])

    def row(self, ours: str) -> Interval:
        """All meetings with others: the row without the diagonal."""
        return mean_interval([s for theirs in self.groups if theirs != ours for s in self.scores[ours, theirs]])

    def advantage(self) -> Interval:
        """How much better a team does with itself than with other groups. A team is the unit of replication."""
        return mean_interval(self.advantages)


def cross_play(
    env: Environment,
    population: Population,
    groups: Sequence[str],
    *,
    all_pairs: bool = False,
    episodes: int = 128,
    seed: int = 0,
) -> CrossPlay:
    """Every group meets every group. `groups` [members] names each member's group, for instance its algorithm.

    Two groups meet in as many pairs as the larger one has members, so that everybody takes part; or in all pairs.
    """
    names = tuple(dict.fromkeys(groups))
    require(len(names) >= 2, f"cross-play needs at least two groups, got {len(names)}: {', '.join(names)}")
    members = {name: [i for i, group in enumerate(groups) if group == name] for name in names}
    pairs: dict[tuple[str, str], list[Meeting]] = {}
    for ours in names:
        for theirs in names:
            a, b = members[ours], members[theirs]
            if ours == theirs:
                met = [(i, i) for i in a]
            elif all_pairs:
                met = [(i, j) for i in a for j in b]
            else:
                met = [(a[k % len(a)], b[k % len(b)]) for k in range(max(len(a), len(b)))]
            pairs[ours, theirs] = met
    returns = play_meetings(env, population, [p for met in pairs.values() for p in met], episodes=episodes, seed=seed)
    scores, at = {}, 0
    alone: dict[int, float] = {}
    together: dict[int, list[float]] = {i: [] for i in range(len(groups))}
    for cell, met in pairs.items():
        scores[cell] = tuple(returns[at : at + len(met)].mean((1, 2)).tolist())
        at += len(met)
        for (i, j), score in zip(met, scores[cell], strict=True):
            if i == j:
                alone[i] = score
            else:
                together[i].append(score)
    advantages = [alone[i] - float(np.mean(others)) for i, others in together.items()]
    return CrossPlay(names, scores, tuple(advantages))


class Matching(NamedTuple):
    """How the teams of a group do with themselves and with the group's other teams."""

    matched: Interval
    """Teams with themselves."""
    mismatched: Interval
    """Teams with the group's other teams."""
    difference: Interval
    """Matched minus mismatched, team by team."""


def self_play(
    env: Environment, population: Population, groups: Sequence[str], *, episodes: int = 128, seed: int = 0
) -> dict[str, Matching]:
    """By group: M-N scores of its teams with themselves (matched seeds) and with each other (mismatched seeds).

    Scores are averaged per team first: a team, not a pair, is the unit of replication.
    """
    names = tuple(dict.fromkeys(groups))
    result = {}
    for name in names:
        members = [i for i, group in enumerate(groups) if group == name]
        require(len(members) >= 2, f"'{name}' has one team: mismatched seeds need at least two")
        meetings = [(i, j) for i in members for j in members]
        scores = play_meetings(env, population, meetings, episodes=episodes, seed=seed).mean((1, 2))
        square = scores.reshape(len(members), len(members))
        matched = np.diag(square)
        others = (square.sum(1) - matched) / (len(members) - 1)
        result[name] = Matching(*[mean_interval(x.tolist()) for x in (matched, others, matched - others)])
    return result
