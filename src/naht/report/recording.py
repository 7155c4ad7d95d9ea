"""Episodes recorded step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.policy import NO_ACTION
from naht.envs.base import Array, Environment, EnvSpec, HostEnvironment, JaxEnvironment, PyTree, TimeStep
from naht.errors import require
from naht.hosted import HostedArena
from naht.rollout import Arena
from naht.teams.population import Population
from naht.teams.sampler import NumControlled, Selection, Team, TeamSampler, check_sampler, team_sampler


class Frame(NamedTuple):
    """What a camera sees of a world, after a reset or a step."""

    state: PyTree
    time_step: TimeStep
    action: Array  # [M] int32, the step that led here; NO_ACTION after a reset


@dataclass(frozen=True)
class Filmed:
    """An environment with a camera: its state is a `Frame`, and episodes end one step later than they really do.

    An arena restarts a world with the very step that ends an episode, and the last state would never be seen. What
    happens in the added step is thrown away with the restart.
    """

    env: JaxEnvironment

    @property
    def spec(self) -> EnvSpec:
        return replace(self.env.spec, horizon=self.env.spec.horizon + 1)

    def reset(self, key: Array) -> tuple[Frame, TimeStep]:
        state, time_step = self.env.reset(key)
        return Frame(state, time_step, jnp.full(self.spec.num_agents, NO_ACTION, jnp.int32)), time_step

    def step(self, key: Array, frame: Frame, actions: Array) -> tuple[Frame, TimeStep]:
        over = frame.time_step.terminated | frame.time_step.truncated
        state, after = self.env.step(key, frame.state, actions)
        shown = after._replace(terminated=over, truncated=jnp.zeros_like(over))
        return Frame(state, after, actions.astype(jnp.int32)), shown


@dataclass(frozen=True, eq=False)
class Replay:
    """One recorded episode of T steps, as NumPy arrays. Frame t is the world after t steps, so there are T + 1."""

    env: Environment
    episode: int
    """Counted from 0 among those recorded together."""
    seats: tuple[str, ...]
    """Who sat where, M names."""
    controlled: np.ndarray
    """[M] bool."""
    states: PyTree
    """The environment's states, [T + 1, ...]."""
    actions: np.ndarray
    """[T, M] int32."""
    rewards: np.ndarray
    """[T], of the step from frame t to frame t + 1."""
    metrics: dict[str, np.ndarray]
    """The task's own numbers, [T + 1] each."""
    select: int | None = None
    """The seat of the agent to look at; None: the first controlled one."""
    obs: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """What agents saw, [T + 1, M, O]."""

    @property
    def selected(self) -> int:
        """The seat of the agent to look at."""
        return int(self.controlled.argmax()) if self.select is None else self.select

    @property
    def length(self) -> int:
        """Steps T."""
        return len(self.rewards)

    @cached_property
    def running_return(self) -> np.ndarray:
        """[T + 1]: the sum of rewards up to each frame."""
        return np.concatenate([[0.0], np.cumsum(self.rewards, dtype=np.float64)])

    @property
    def episode_return(self) -> float:
        return float(self.running_return[-1])


@partial(jax.jit, static_argnums=0)
def _film(arena: Arena, controlled_params: PyTree, uncontrolled_params: PyTree, key: Array) -> tuple[Team, Frame]:
    """Teams [E, M] and frames [T + 1, E, ...] of the first episode in each of the arena's filmed environments."""
    k_reset, k_play = jax.random.split(key)
    start = arena.reset(k_reset)

    def step(state: PyTree, key: Array) -> tuple[PyTree, Frame]:
        following, _ = arena.play(controlled_params, uncontrolled_params, state, key, 1)
        return following, state.env_state

    _, frames = jax.lax.scan(step, start, jax.random.split(k_play, arena.env.spec.horizon))
    return start.team, frames


def _film_hosted(
    arena: HostedArena, controlled_params: PyTree, uncontrolled_params: PyTree, keys: Array
) -> tuple[Team, Frame]:
    """The same of an episode for each of the keys [E], in one world outside of JAX, whose state is the picture that it
    gives, [H, W, 3] uint8, or nothing. After its end, an episode stays as it is."""
    horizon = arena.arena.env.spec.horizon
    nothing = jnp.full((1, arena.arena.env.spec.num_agents), NO_ACTION, jnp.int32)
    teams, films = [], []
    for key in keys:
        k_reset, k_play = jax.random.split(key)
        state = arena.reset(k_reset)
        teams.append(state.team)
        film = [Frame(arena.worlds.picture(), state.time_step, nothing)]
        for step_keys in arena.arena.keys(k_play, horizon):
            state, record = arena.step(controlled_params, uncontrolled_params, state, step_keys)
            film.append(Frame(arena.worlds.picture(), state.time_step, record.action))
            if np.asarray(state.first).any():
                break
        film += film[-1:] * (horizon + 1 - len(film))
        films.append(jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(film)))
    team = jax.tree.map(lambda *leaves: np.concatenate(leaves), *teams)
    return team, jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *films)


def _sampler(
    env: Environment, controlled: Population, uncontrolled: Population, num_controlled: NumControlled, mix: bool
) -> TeamSampler:
    """As in evaluation, but every controlled seat has its own member, and nobody sits twice if there are enough."""
    sampler = team_sampler(
        env.spec.num_agents, len(uncontrolled), num_controlled, num_controlled_members=len(controlled), mix=mix
    )
    most = max(n for n, p in enumerate(sampler.phi) if p > 0) if isinstance(sampler.phi, tuple) else env.spec.num_agents
    return replace(sampler, controlled=Selection(len(controlled), mix=True, replace=len(controlled) < most))


def record(
    env: Environment,
    controlled: Population,
    uncontrolled: Population,
    *,
    num_controlled: NumControlled = "uniform",
    mix: bool = False,
    episodes: int = 1,
    seed: int = 0,
    select: int | None = None,
) -> list[Replay]:
    """Play whole episodes and keep every step of them.

    `num_controlled` is N as for `team_sampler`. Controlled seats are filled with different members of `controlled` if
    there are enough; strangers come from one member per episode, or with `mix` from any for each seat. `select` is
    the seat of the agent whose view pictures show, if the task's drawing has one; None: the first controlled seat.
    """
    require(episodes >= 1, f"episodes is {episodes}: it must be at least 1")
    require(0 <= seed < 2**32, f"seed is {seed}: it must lie between 0 and 2**32 - 1")
    seats = env.spec.num_agents
    require(select is None or 0 <= select < seats, f"select is {select}: a team of {seats} has seats 0 to {seats - 1}")
    sampler = _sampler(env, controlled, uncontrolled, num_controlled, mix)
    check_sampler(sampler, env)
    key, sides = jax.random.key(seed), (controlled.roster, uncontrolled.roster)
    params = controlled.params, uncontrolled.params
    if isinstance(env, HostEnvironment):
        arena = HostedArena(Arena(env, sampler, *sides, 1))
        team, frames = _film_hosted(arena, *params, jax.random.split(key, episodes))
    else:
        team, frames = _film(Arena(Filmed(env), sampler, *sides, episodes), *params, key)
    ours, member = np.asarray(team.controlled), np.asarray(team.member)  # [E, M]
    # To NumPy before anything is cut: JAX would compile a program for every length.
    frames = jax.tree.map(_as_numpy, frames)
    over = frames.time_step.terminated | frames.time_step.truncated  # [T + 1, E]

    def replay(i: int) -> Replay:
        shown = int(over[:, i].argmax()) + 1
        state, time_step, action = jax.tree.map(lambda leaf: leaf[:shown, i], tuple(frames))
        names = [(controlled if c else uncontrolled).roster.names[m] for c, m in zip(ours[i], member[i], strict=True)]
        return Replay(
            env=env,
            episode=i,
            seats=tuple(names),
            controlled=ours[i],
            states=state,
            actions=action[1:],
            rewards=time_step.reward[1:],
            metrics=time_step.metrics,
            obs=time_step.obs,
            select=select,
        )

    return [replay(i) for i in range(episodes)]


def _as_numpy(leaf: Array) -> np.ndarray:
    """Random keys, which a state may hold, become their data."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)
