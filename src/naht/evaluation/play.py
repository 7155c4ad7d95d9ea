"""The one evaluation loop: teams play whole episodes, and every episode becomes a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.devices import SHARED, SPLIT, own_key, spread
from naht.envs.base import Array, Environment, PyTree
from naht.errors import require
from naht.rollout import Arena
from naht.teams.population import Population
from naht.teams.sampler import Sampler, Team, check_sampler, team_sampler

MAX_PARALLEL = 1024
"""Episodes played side by side."""


class Episodes(NamedTuple):
    """Finished episodes, E of them."""

    team: Team  # [E, M]
    episode_return: Array  # [E]
    length: Array  # [E] int32
    metrics: dict[str, Array]  # [E]


@partial(jax.jit, static_argnums=(0, 4))
def play_episodes(
    arena: Arena,
    controlled_params: PyTree,
    uncontrolled_params: PyTree,
    key: Array,
    devices: int = 1,
    team: Team | None = None,
) -> Episodes:
    """One episode in each environment of the arena, which every device has; from a fresh start.

    `team` [E, M] says who plays in every episode; by default the arena's sampler draws.

    Only the first episode of an environment counts, however short: counting whatever ends within a fixed number of
    steps would favour short episodes.
    """

    def play(ours: PyTree, theirs: PyTree, key: Array, team: Team | None) -> Episodes:
        k_reset, k_play = jax.random.split(own_key(key, devices))
        _, tr = arena.play(ours, theirs, arena.reset(k_reset, team), k_play, arena.env.spec.horizon)
        end = tr.done.argmax(0)[None]  # [1, E]

        def at_end(leaf: Array) -> Array:
            index = end.reshape(end.shape + (1,) * (leaf.ndim - 2))
            return jnp.take_along_axis(leaf, index, axis=0)[0]

        return jax.tree.map(at_end, Episodes(tr.team, tr.episode_return, tr.episode_length, tr.metrics))

    inputs = (SHARED, SHARED, SHARED, SPLIT)
    return spread(play, devices, inputs, SPLIT)(controlled_params, uncontrolled_params, key, team)


@dataclass(frozen=True)
class EpisodeRow:
    """One evaluation episode; `episode` counts within the same trial, task, N and seed."""

    trial: str
    """What is replicated: a label of the evaluated agent."""
    task: str
    num_controlled: int
    seed: int
    episode: int
    seats: tuple[str, ...]
    """Who sat where; controlled agents are marked with a star."""
    episode_return: float
    length: int
    metrics: dict[str, float]


def seat_names(controlled: Population, uncontrolled: Population, team: Team) -> list[tuple[str, ...]]:
    """Names per episode, for a team of arrays [E, M]."""
    ours, theirs = controlled.roster.names, uncontrolled.roster.names
    rows = zip(np.asarray(team.controlled), np.asarray(team.member), strict=True)
    return [tuple(f"*{ours[m]}" if c else theirs[m] for c, m in zip(*row, strict=True)) for row in rows]


def evaluate_sampler(
    env: Environment,
    sampler: Sampler,
    controlled: Population,
    uncontrolled: Population,
    *,
    episodes: int = 128,
    seed: int = 0,
    trial: str = "",
) -> list[EpisodeRow]:
    """Play `episodes` episodes with teams from any sampler."""
    require(episodes >= 1, f"episodes is {episodes}: it must be at least 1")
    check_sampler(sampler, env)
    rows: list[EpisodeRow] = []
    key = jax.random.key(seed)
    for start in range(0, episodes, MAX_PARALLEL):
        count = min(MAX_PARALLEL, episodes - start)
        arena = Arena(env, sampler, controlled.roster, uncontrolled.roster, count)
        done = play_episodes(arena, controlled.params, uncontrolled.params, jax.random.fold_in(key, start))
        names = seat_names(controlled, uncontrolled, done.team)
        done = jax.device_get(done)
        rows += [
            EpisodeRow(
                trial=trial,
                task=env.spec.name,
                num_controlled=int(done.team.controlled[i].sum()),
                seed=seed,
                episode=start + i,
                seats=names[i],
                episode_return=float(done.episode_return[i]),
                length=int(done.length[i]),
                metrics={name: float(values[i]) for name, values in done.metrics.items()},
            )
            for i in range(count)
        ]
    return rows


def evaluate_mn(
    env: Environment,
    controlled: Population,
    uncontrolled: Population,
    *,
    episodes: int = 128,
    seed: int = 0,
    num_controlled: Iterable[int] | None = None,
    trial: str = "",
) -> list[EpisodeRow]:
    """The episodes behind an M-N score: for every N in 1..M-1 (or those given), `episodes` episodes in random slots."""
    m = env.spec.num_agents
    chosen: Sequence[int] = list(range(1, m) if num_controlled is None else num_controlled)
    rows: list[EpisodeRow] = []
    for n in chosen:
        sampler = team_sampler(m, len(uncontrolled), n, num_controlled_members=len(controlled))
        rows += evaluate_sampler(env, sampler, controlled, uncontrolled, episodes=episodes, seed=seed, trial=trial)
    return rows
