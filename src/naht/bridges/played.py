"""A task of ours, one world of it, step by step from outside: you act in some seats, strangers in the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.policy import Percept
from naht.envs.base import Array, Environment, HostEnvironment, PyTree, TimeStep
from naht.errors import NahtError, require
from naht.rollout import Arena, ArenaState, Trajectory
from naht.tasks import make_env
from naht.teams.population import Population, Roster, load_members
from naht.teams.sampler import NumControlled, check_sampler, team_sampler


@dataclass(frozen=True)
class _FromOutside:
    """A policy whose parameters are the actions of all seats, [1, M]."""

    def init(self, key: Array) -> Array:
        del key
        return jnp.zeros(0, jnp.int32)  # they come with every step

    def initial_memory(self, batch: tuple[int, ...]) -> tuple[()]:
        del batch
        return ()

    def act(
        self, params: Array, memory: tuple[()], percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, tuple[()], Array]:
        del key, greedy
        return params[percept.slot], memory, jnp.zeros(percept.slot.shape)


@partial(jax.jit, static_argnums=0)
def _reset(arena: Arena, key: Array) -> ArenaState:
    return arena.reset(key)


@partial(jax.jit, static_argnums=0)
def _step(
    arena: Arena, actions: Array, strangers: PyTree, state: ArenaState, key: Array
) -> tuple[ArenaState, Trajectory]:
    k_ours, k_theirs, k_step, _ = arena.keys(key, 1)[0]
    acted = arena.act((actions[None],), strangers, state, k_ours, k_theirs)
    for_env = jax.random.split(k_step, 1)
    return arena.note(state, acted, *jax.vmap(arena.env.step)(for_env, state.env_state, acted.action))


class Played:
    """Episodes of a task. Without strangers all seats are yours; else N in each episode, as X(U, C) draws them."""

    def __init__(
        self, task: str | Environment, teammates: tuple[str, ...] = (), num_controlled: NumControlled | None = None
    ):
        env = make_env(task) if isinstance(task, str) else task
        if isinstance(env, HostEnvironment):
            raise NahtError(f"'{env.spec.name}' runs outside of JAX: use it where it comes from")
        if num_controlled is None:
            num_controlled = "uniform" if teammates else "all"
        self.env, self.spec = env, env.spec
        self.strangers = Population(load_members(teammates, env.spec))
        sampler = team_sampler(env.spec.num_agents, len(self.strangers), num_controlled)
        check_sampler(sampler, env, (1, len(self.strangers)))
        phi: Any = sampler.phi
        self.most = max(n for n, p in enumerate(phi) if p > 0)
        """N at most."""
        you = Roster(("you",), (_FromOutside(),), (True,))
        self.arena = Arena(env, sampler, you, self.strangers.roster, 1)
        self.key: Array | None = None
        self.state: ArenaState | None = None

    def reset(self, seed: int | None) -> TimeStep:
        """Begin an episode. Without a seed, the next one of those that the last seed has begun."""
        if seed is not None or self.key is None:
            fresh = int(np.random.default_rng().integers(2**32)) if seed is None else seed
            require(0 <= fresh < 2**63, f"seed is {fresh}: it must be from 0 to 2**63 - 1")
            self.key = jax.random.key(fresh)
        self.key, k_reset = jax.random.split(self.key)
        self.state = _reset(self.arena, k_reset)
        self.seats = np.flatnonzero(np.asarray(self.state.team.controlled[0]))
        """[N], yours."""
        return self.shown

    def step(self, actions: np.ndarray) -> TimeStep:
        """Act in your seats; actions [N] int."""
        require(self.state is not None, "call reset() before step()")
        assert self.key is not None
        everywhere = np.zeros(self.spec.num_agents, np.int32)
        everywhere[self.seats] = actions
        self.key, k_step = jax.random.split(self.key)
        self.state, _ = _step(self.arena, everywhere, self.strangers.params, self.state, k_step)
        return self.shown

    @property
    def shown(self) -> TimeStep:
        """What the world shows, in NumPy's arrays."""
        assert self.state is not None
        return jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.state.time_step)

    @property
    def names(self) -> list[str]:
        """Who sits in each seat, [M]."""
        assert self.state is not None
        team = jax.tree.map(lambda leaf: np.asarray(leaf)[0], self.state.team)
        return ["you" if c else self.strangers.roster.names[m] for c, m in zip(*team, strict=True)]
