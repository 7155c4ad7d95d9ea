"""The contract between a world and everything else.

An environment is a frozen dataclass of settings with three members: `spec`, `reset` and `step`. It describes *one*
world; batches are made by `jax.vmap`. All arrays carry the agent axis `M` first, so no code ever loops over agents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from naht.config import MOST_NUMBERS, Range, Width, encode, setting

Array = jax.Array
PyTree = Any

MOST_AGENTS = 1000
TeamSize = Annotated[int, Range(1, MOST_AGENTS)]
Horizon = Annotated[int, Range(1, 1_000_000)]
"""Steps of an episode."""


@setting
@dataclass(frozen=True)
class EnvSpec:
    """The sizes that policies and learners need to know."""

    name: str
    num_agents: TeamSize
    obs_size: Width
    state_size: Annotated[int, Range(0, MOST_NUMBERS)]
    num_actions: Width
    horizon: Horizon


class TimeStep(NamedTuple):
    """What the world shows after a reset or a step."""

    obs: Array  # [M, O] float32, what each agent sees
    global_state: Array  # [S] float32, for centralised critics and mixers only
    avail: Array  # [M, A] bool, allowed actions; every agent always has at least one
    alive: Array  # [M] bool, agents that can act; what the others do and see trains no policy and no teammate model
    reward: Array  # [] float32, of the whole team; 0 after a reset
    terminated: Array  # [] bool, the task itself is over: nothing follows, no bootstrapping
    truncated: Array  # [] bool, the clock ran out: the world would have gone on
    metrics: dict[str, Array]  # named [] float32, read when an episode ends (a win, say); the same names every step


@runtime_checkable
class JaxEnvironment(Protocol):
    """A cooperative Dec-POMDP with a team reward, as pure functions."""

    @property
    def spec(self) -> EnvSpec: ...

    def reset(self, key: Array) -> tuple[PyTree, TimeStep]:
        """Start an episode. Returns (environment state, first time step)."""
        ...

    def step(self, key: Array, state: PyTree, actions: Array) -> tuple[PyTree, TimeStep]:
        """Every agent acts at once; actions [M] int32. Must set `truncated` (or `terminated`) at `spec.horizon`."""
        ...


class HostWorld(Protocol):
    """One world. Time steps hold NumPy arrays, of the sizes that the environment's `spec` states."""

    def reset(self, seed: int) -> TimeStep:
        """Begin an episode. The same seed and the same actions should give the same episode."""
        ...

    def step(self, actions: np.ndarray) -> TimeStep:
        """Every agent acts at once; actions [M] int32. Never called after the end of an episode."""
        ...

    def close(self) -> None:
        """The world is not needed any more."""
        ...


@runtime_checkable
class HostEnvironment(Protocol):
    """A task whose worlds are outside of JAX: a frozen dataclass of settings, which can be pickled."""

    @property
    def spec(self) -> EnvSpec: ...

    def open(self) -> HostWorld:
        """Make a world, in whichever process it is to run."""
        ...


Environment = JaxEnvironment | HostEnvironment
"""A task: any of its worlds plays an episode of any team."""


def is_hosted(env: Environment) -> TypeGuard[HostEnvironment]:
    """Does this task run outside of JAX?"""
    return isinstance(env, HostEnvironment)


def world_of(env: Environment) -> str:
    """Tells environments apart that have equal settings but read different files; empty for those that read none."""
    return getattr(env, "fingerprint", "")


def side_by_side(env: Environment, wanted: int) -> int:
    """How many of `wanted` worlds can run at once: all, unless the environment itself states fewer."""
    return min(wanted, getattr(env, "most_side_by_side", wanted))


def task_hash(env: Environment, settings: dict[str, Any] | None = None) -> str:
    """A short name for a task with all its settings and the files that it reads.

    `settings`: as they were written down, so that one which the task has had only since then does not count.
    """
    text = json.dumps(settings or encode(env), sort_keys=True) + world_of(env)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def opening(obs: Array, global_state: Array, avail: Array, metrics: dict[str, Array] | None = None) -> TimeStep:
    """The time step of a reset: no reward yet, nobody dead, nothing over."""
    no = jnp.zeros((), bool)
    alive = jnp.ones(obs.shape[0], bool)
    return TimeStep(obs, global_state, avail, alive, jnp.zeros((), jnp.float32), no, no, metrics or {})


def worlds_last(f: Callable[..., Any]) -> Callable[..., Any]:
    """From a function of arrays whose last axis is a batch of worlds to one of a single world. Under `jax.vmap` it does
    not add a first axis to everything but calls `f` with all worlds on the last one, which is much faster."""

    @jax.custom_batching.custom_vmap
    def single(*args: Any) -> Any:
        one = jax.tree.map(lambda leaf: leaf[..., None], args)
        return jax.tree.map(lambda leaf: leaf[..., 0], f(*one))

    @single.def_vmap
    def many(size: int, batched: Any, *args: Any) -> Any:
        def last(leaf: Array, batched: bool) -> Array:
            return jnp.moveaxis(leaf if batched else jnp.broadcast_to(leaf, (size, *leaf.shape)), 0, -1)

        result = f(*jax.tree.map(last, args, tuple(batched)))
        result = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), result)
        return result, jax.tree.map(lambda _: True, result)

    return single
