"""The one evaluation loop: teams play whole episodes, and every episode becomes a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.devices import SHARED, SPLIT, own_key, spread
from naht.envs.base import Array, Environment, PyTree, side_by_side
from naht.errors import NahtError, require
from naht.rollout import Arena, ArenaState, where
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
    """One episode in each environment of the arena, which every device has; from a fresh start until all have ended.

    `team` [E, M] says who plays in every episode; by default the arena's sampler draws.

    Only the first episode of an environment counts, however short: counting whatever ends within a fixed number of
    steps would favour short episodes.
    """

    def play(ours: PyTree, theirs: PyTree, key: Array, team: Team | None) -> Episodes:
        k_reset, k_play = jax.random.split(own_key(key, devices))
        start = arena.reset(k_reset, team)
        keys = arena.keys(k_play, arena.env.spec.horizon)
        metrics = start.time_step.metrics
        first = Episodes(start.team, start.episode_return, jnp.zeros_like(start.episode_length), metrics)

        def going_on(carry: tuple[Array, ArenaState, Episodes]) -> Array:
            time, _, first = carry
            return (first.length == 0).any() & (time < arena.env.spec.horizon)

        def step(carry: tuple[Array, ArenaState, Episodes]) -> tuple[Array, ArenaState, Episodes]:
            time, state, first = carry
            state, record = arena.step(ours, theirs, state, keys[time])
            ended = Episodes(record.team, record.episode_return, record.episode_length, record.metrics)
            return time + 1, state, where(record.done & (first.length == 0), ended, first)

        return jax.lax.while_loop(going_on, step, (jnp.zeros((), jnp.int32), start, first))[2]

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


@contextmanager
def plain_errors() -> Iterator[None]:
    """A `NahtError` of Python code that compiled code calls, a teammate's or a game's, comes out as what it is."""
    try:
        yield
    except jax.errors.JaxRuntimeError as e:
        kind, _, message = str(e).strip().rpartition("\n")[2].partition(": ")
        if kind != NahtError.__name__:
            raise
        raise NahtError(message) from e


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
    most = side_by_side(env, MAX_PARALLEL)
    for start in range(0, episodes, most):
        count = min(most, episodes - start)
        arena = Arena(env, sampler, controlled.roster, uncontrolled.roster, count)
        batch_key = jax.random.fold_in(key, start)
        with plain_errors():
            done = jax.device_get(play_episodes(arena, controlled.params, uncontrolled.params, batch_key))
        names = seat_names(controlled, uncontrolled, done.team)
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
