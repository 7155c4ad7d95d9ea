"""The one evaluation loop: teams play whole episodes, and every episode becomes a row."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.devices import SHARED, SPLIT, spread
from naht.envs.base import Array, Environment, PyTree, is_hosted, side_by_side
from naht.errors import NahtError, require
from naht.hosted import HostedArena
from naht.rollout import Arena, ArenaState, Trajectory, where
from naht.teams.population import Population
from naht.teams.sampler import Sampler, Team, check_sampler, team_sampler

BLOCK = 128
"""Episodes played side by side with one random key. Part of every result, so it is the same on every machine."""


class Episodes(NamedTuple):
    """Finished episodes, E of them."""

    team: Team  # [E, M]
    episode_return: Array  # [E]
    length: Array  # [E] int32
    metrics: dict[str, Array]  # [E]


def play_episodes(
    arena: Arena,
    controlled_params: PyTree,
    uncontrolled_params: PyTree,
    keys: Array,
    devices: int = 1,
    team: Team | None = None,
) -> Episodes:
    """One episode in each environment of the arena, which every device has; from a fresh start until all have ended.

    `keys` [devices] are the devices' random keys; `team` [E, M] says who plays in every episode, by default the arena's
    sampler draws.

    Only the first episode of an environment counts, however short: counting whatever ends within a fixed number of
    steps would favour short episodes.
    """
    if is_hosted(arena.env):
        return _play_hosted(HostedArena(arena), controlled_params, uncontrolled_params, keys[0], team)
    return _play_compiled(arena, controlled_params, uncontrolled_params, keys, devices, team)


def _opened(start: ArenaState) -> Episodes:
    """Episodes that have just begun: none has a length yet."""
    return Episodes(start.team, start.episode_return, jnp.zeros_like(start.episode_length), start.time_step.metrics)


def _first(record: Trajectory, found: Episodes) -> Episodes:
    """With those that a step has ended, where none was found before."""
    ended = Episodes(record.team, record.episode_return, record.episode_length, record.metrics)
    return where(record.done & (found.length == 0), ended, found)


@partial(jax.jit, static_argnums=(0, 4))
def _play_compiled(
    arena: Arena, ours: PyTree, theirs: PyTree, keys: Array, devices: int, team: Team | None
) -> Episodes:
    def play(ours: PyTree, theirs: PyTree, keys: Array, team: Team | None) -> Episodes:
        k_reset, k_play = jax.random.split(keys[0])
        start = arena.reset(k_reset, team)
        keys = arena.keys(k_play, arena.env.spec.horizon)

        def going_on(carry: tuple[Array, ArenaState, Episodes]) -> Array:
            time, _, first = carry
            return (first.length == 0).any() & (time < arena.env.spec.horizon)

        def step(carry: tuple[Array, ArenaState, Episodes]) -> tuple[Array, ArenaState, Episodes]:
            time, state, first = carry
            state, record = arena.step(ours, theirs, state, keys[time])
            return time + 1, state, _first(record, first)

        return jax.lax.while_loop(going_on, step, (jnp.zeros((), jnp.int32), start, _opened(start)))[2]

    return spread(play, devices, (SHARED, SHARED, SPLIT, SPLIT), SPLIT)(ours, theirs, keys, team)


def _play_hosted(arena: HostedArena, ours: PyTree, theirs: PyTree, key: Array, team: Team | None) -> Episodes:
    k_reset, k_play = jax.random.split(key)
    state = arena.reset(k_reset, team)
    found = _opened(state)
    for keys in arena.arena.keys(k_play, arena.arena.env.spec.horizon):
        now, record = arena.step(ours, theirs, state, keys)
        found = jax.device_get(_first(record, found))
        if (found.length > 0).all():
            break
        state = arena.restart(now, keys[3])
    return found


def check_ended(env: Environment, played: Iterable[Episodes]) -> None:
    """An episode without an end has no return."""
    ended = all((np.asarray(part.length) > 0).all() for part in played)
    require(ended, never_ends(env, env.spec.horizon))


def never_ends(env: Environment, steps: int) -> str:
    """What is wrong with an environment whose episodes go on."""
    return (
        f"an episode of '{env.spec.name}' has not ended after {steps} steps, its horizon is {env.spec.horizon}: step "
        "must set truncated (or terminated) by then; naht.check_environment finds such things"
    )


def in_blocks(env: Environment, episodes: int) -> tuple[int, int]:
    """How many blocks of how many episodes each; the last few of them may be more than were asked for."""
    require(episodes >= 1, f"episodes is {episodes}: it must be at least 1")
    count = ceil(episodes / side_by_side(env, BLOCK))
    return count, ceil(episodes / count)


def chance(seed: int, *more: int) -> np.random.Generator:
    """Random numbers of an evaluation: other ones for every seed, and for every number that is given besides."""
    require(seed >= 0, f"seed is {seed}: it can't be negative")
    return np.random.default_rng([seed, *more])


def block_keys(rng: np.random.Generator, count: int) -> Array:
    """Random keys for a number of blocks, [K]."""
    return jax.random.wrap_key_data(jnp.asarray(rng.integers(2**32, size=(count, 2), dtype=np.uint32)))


def play_blocks(
    arena: Arena, controlled: Population, uncontrolled: Population, keys: Array, team: Team | None = None
) -> Episodes:
    """A block of episodes, one in each of the arena's B environments, for each of the `keys` [K]: leaves [K * B, ...].

    Every block has its own key, so the result is the same however many devices share the work. `team` [K * B, M] says
    who plays; by default the arena's sampler draws.
    """
    blocks, size = len(keys), arena.num_envs
    devices = 1 if is_hosted(arena.env) else min(jax.device_count(), blocks)
    team = jax.tree.map(np.asarray, team)
    done = []
    for start in range(0, blocks, devices):
        # Devices that would have nothing to do in the last round play blocks again: one program for all rounds.
        chosen = np.arange(start, start + devices) % blocks
        episodes = (chosen[:, None] * size + np.arange(size)).reshape(-1)
        who = jax.tree.map(lambda leaf: leaf[episodes], team)  # noqa: B023 (used at once)
        with plain_errors():
            done.append(play_episodes(arena, controlled.params, uncontrolled.params, keys[chosen], devices, who))
    with plain_errors():
        done = jax.device_get(done)
    check_ended(arena.env, done)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: blocks * size], *done)


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
    log = logging.getLogger("jax._src.callback")  # where JAX would tell the whole story first
    before, log.disabled = log.disabled, True
    try:
        yield
    except jax.errors.JaxRuntimeError as e:
        kind, _, message = str(e).strip().rpartition("\n")[2].partition(": ")
        if kind != NahtError.__name__:
            raise
        _forget_failed_work()
        raise NahtError(message) from e
    finally:
        log.disabled = before


def _forget_failed_work() -> None:
    """JAX waits for all computations when the process ends, and would tell of the failed one again, at length."""
    with suppress(ImportError, AttributeError):  # it has no public way to say so
        from jax._src.dispatch import runtime_tokens

        runtime_tokens.clear()  # type: ignore[no-untyped-call]


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
    check_sampler(sampler, env, (len(controlled), len(uncontrolled)))
    blocks, size = in_blocks(env, episodes)
    arena = Arena(env, sampler, controlled.roster, uncontrolled.roster, size)
    done = play_blocks(arena, controlled, uncontrolled, block_keys(chance(seed), blocks))
    return _as_rows(env, controlled, uncontrolled, done, episodes, seed, trial)


def evaluate_mn(
    env: Environment,
    controlled: Population,
    uncontrolled: Population,
    *,
    episodes: int = 128,
    seed: int = 0,
    num_controlled: Iterable[int] | None = None,
    trial: str = "",
    common: bool = False,
) -> list[EpisodeRow]:
    """The episodes behind an M-N score: for every N in 1..M-1 (or those given), `episodes` episodes in random slots.

    Every member of either population takes part equally often, up to one episode. Worlds, teams and slots are other
    ones for every N and for every controlled population, so that their means are independent. With `common` they depend
    on the seed and N alone: controlled populations that are to be compared meet the same ones.
    """
    m = env.spec.num_agents
    counts = list(range(1, m) if num_controlled is None else num_controlled)
    samplers = [team_sampler(m, len(uncontrolled), n, num_controlled_members=len(controlled)) for n in counts]
    blocks, size = in_blocks(env, episodes)
    keys, teams = [], []
    for n in counts:
        rng = chance(seed, n, *[int(controlled.fingerprint, 16)] * (not common))
        team = balanced_teams(rng, m, n, episodes, len(controlled), len(uncontrolled))
        teams.append(filled_up(team, blocks * size))
        keys.append(block_keys(rng, blocks))
    arena = Arena(env, samplers[0], controlled.roster, uncontrolled.roster, size)
    everybody = jax.tree.map(lambda *leaves: np.concatenate(leaves), *teams)
    done = play_blocks(arena, controlled, uncontrolled, jnp.concatenate(keys), everybody)
    rows = []
    for i in range(len(counts)):
        part = jax.tree.map(lambda leaf: leaf[i * blocks * size :], done)  # noqa: B023 (used at once)
        rows += _as_rows(env, controlled, uncontrolled, part, episodes, seed, trial)
    return rows


def balanced_teams(rng: np.random.Generator, m: int, n: int, episodes: int, ours: int, theirs: int) -> Team:
    """Teams [E, M] of n agents of one member of C and m - n of one of U, in random slots.

    `ours` and `theirs` are the sizes of C and U. Each member plays in equally many episodes, up to one.
    """

    def members(size: int) -> np.ndarray:
        order = rng.permutation(max(size, 1))
        return rng.permutation(order[np.arange(episodes) % len(order)])[:, None]

    controlled = rng.random((episodes, m)).argsort(-1) < n
    member = np.where(controlled, members(ours), members(theirs))
    return Team(jnp.asarray(controlled), jnp.asarray(member, jnp.int32))


def filled_up(team: Team, size: int) -> Team:
    """Teams [E, M] -> [size, M]: after the last one, the first ones again."""
    return jax.tree.map(lambda leaf: leaf[np.arange(size) % len(leaf)], team)


def _as_rows(
    env: Environment,
    controlled: Population,
    uncontrolled: Population,
    done: Episodes,
    count: int,
    seed: int,
    trial: str,
) -> list[EpisodeRow]:
    """The first `count` episodes."""
    names = seat_names(controlled, uncontrolled, jax.tree.map(lambda leaf: leaf[:count], done.team))
    return [
        EpisodeRow(
            trial=trial,
            task=env.spec.name,
            num_controlled=int(done.team.controlled[i].sum()),
            seed=seed,
            episode=i,
            seats=names[i],
            episode_return=float(done.episode_return[i]),
            length=int(done.length[i]),
            metrics={name: float(values[i]) for name, values in done.metrics.items()},
        )
        for i in range(count)
    ]
