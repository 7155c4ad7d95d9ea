"""Who gets on with whom: every team of a population meets others, all meetings in a few large batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.envs.base import Environment
from naht.errors import require
from naht.evaluation.play import block_keys, chance, filled_up, in_blocks, play_blocks
from naht.evaluation.statistics import Interval, group_means, mean_interval
from naht.evaluation.tables import RETURN
from naht.rollout import Arena
from naht.teams.population import Population
from naht.teams.sampler import Team, team_sampler

Meeting = tuple[int, int]
"""Two members of a population by index: N agents of the first play with M - N of the second."""
PART = 64
"""Blocks of episodes that are played, and may be kept, together."""
Arrays = dict[str, np.ndarray]
Keep = Callable[[int, int, Callable[[], Arrays]], Arrays]
"""Given the number of a part, how many there are, and a function that plays it: what came of it, now or before."""


def _play(part: int, parts: int, play: Callable[[], Arrays]) -> Arrays:
    del part, parts
    return play()


def members_of(groups: Sequence[str]) -> dict[str, list[int]]:
    """By group, in the order of their first members: who belongs to it."""
    return {name: [i for i, group in enumerate(groups) if group == name] for name in dict.fromkeys(groups)}


def paired(ours: Sequence[int], theirs: Sequence[int]) -> list[Meeting]:
    """As many meetings as the larger group has members, so that everybody takes part."""
    return [(ours[k % len(ours)], theirs[k % len(theirs)]) for k in range(max(len(ours), len(theirs)))]


def play_meetings(
    env: Environment,
    population: Population,
    meetings: Sequence[Meeting],
    *,
    episodes: int = 128,
    num_controlled: Iterable[int] | None = None,
    seed: int = 0,
    keep: Keep = _play,
) -> Arrays:
    """`episodes` episodes in random slots per meeting and N (default: 1..M-1): their returns (`RETURN`) and the task's
    metrics by name, each [meetings, N, episodes]. They are played in parts; `keep` may save them on the way."""
    m = env.spec.num_agents
    counts = list(range(1, m) if num_controlled is None else num_controlled)
    require(episodes >= 1, f"episodes is {episodes}: it must be at least 1")
    rng = chance(seed)
    shape = (len(meetings), len(counts), episodes)
    ours, theirs = np.asarray(meetings, np.int32).reshape(-1, 2).T
    place = rng.random((*shape, m)).argsort(-1)
    controlled = (place < np.asarray(counts)[None, :, None, None]).reshape(-1, m)
    who = [np.repeat(side, len(counts) * episodes)[:, None] for side in (ours, theirs)]
    total = len(controlled)
    blocks, size = in_blocks(env, total)
    team = Team(jnp.asarray(controlled), jnp.asarray(np.where(controlled, *who), jnp.int32))
    team = filled_up(team, blocks * size)
    arena = Arena(env, team_sampler(m, len(population)), population.roster, population.roster, size)
    keys = block_keys(rng, blocks)

    def play(first: int) -> Arrays:
        mine = jax.tree.map(lambda leaf: leaf[first * size : (first + PART) * size], team)
        done = play_blocks(arena, population, population, keys[first : first + PART], mine)
        return {name: np.asarray(values) for name, values in ({RETURN: done.episode_return} | done.metrics).items()}

    starts = range(0, blocks, PART)
    played = [keep(i, len(starts), partial(play, first)) for i, first in enumerate(starts)]
    return {
        name: np.concatenate([part[name] for part in played])[:total].astype(float).reshape(shape) for name in played[0]
    }


@dataclass(frozen=True)
class CrossPlay:
    """M-N scores of every group of teams with every other. A team, not a pair, is the unit of replication."""

    groups: tuple[str, ...]
    scores: dict[tuple[str, str], tuple[float, ...]]
    """By (ours, theirs): for each of our teams its mean score with those of theirs that it met. On the diagonal every
    team meets itself."""

    def cell(self, ours: str, theirs: str) -> Interval:
        return mean_interval(self.scores[ours, theirs])

    def with_others(self, ours: str) -> np.ndarray:
        """[teams]: each team's mean over the other groups."""
        return np.mean([self.scores[ours, theirs] for theirs in self.groups if theirs != ours], axis=0)

    def row(self, ours: str) -> Interval:
        """Meetings with other groups: the row without the diagonal."""
        return mean_interval(self.with_others(ours).tolist())

    def advantage(self) -> Interval:
        """How much better a team does with itself than with other groups, over all teams."""
        return mean_interval(np.concatenate([self.scores[g, g] - self.with_others(g) for g in self.groups]).tolist())


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
    members = members_of(groups)
    pairs: dict[tuple[str, str], list[Meeting]] = {}
    for ours in names:
        for theirs in names:
            a, b = members[ours], members[theirs]
            if ours == theirs:
                met = [(i, i) for i in a]
            elif all_pairs:
                met = [(i, j) for i in a for j in b]
            else:
                met = paired(a, b)
            pairs[ours, theirs] = met
    every = [pair for met in pairs.values() for pair in met]
    returns = play_meetings(env, population, every, episodes=episodes, seed=seed)[RETURN]
    scores, at = {}, 0
    for (ours, theirs), met in pairs.items():
        played = zip(met, returns[at : at + len(met)].mean((1, 2)), strict=True)
        by_team = group_means(played, lambda pair: pair[0][0], lambda pair: float(pair[1]))
        scores[ours, theirs] = tuple(by_team[i] for i in members[ours])
        at += len(met)
    return CrossPlay(names, scores)


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
    result = {}
    for name, members in members_of(groups).items():
        require(len(members) >= 2, f"'{name}' has one team: mismatched seeds need at least two")
        meetings = [(i, j) for i in members for j in members]
        scores = play_meetings(env, population, meetings, episodes=episodes, seed=seed)[RETURN].mean((1, 2))
        square = scores.reshape(len(members), len(members))
        matched = np.diag(square)
        others = (square.sum(1) - matched) / (len(members) - 1)
        result[name] = Matching(*[mean_interval(x.tolist()) for x in (matched, others, matched - others)])
    return result
