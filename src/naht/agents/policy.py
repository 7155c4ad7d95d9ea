"""The contract of anything that can take a seat in a team."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from naht.envs.base import Array, PyTree

NO_ACTION = -1
"""The last action of an agent that has not acted in this episode."""


class Percept(NamedTuple):
    """What an agent knows at one time step, besides its memory. Any leading axes `...`."""

    obs: Array  # [..., O] float32
    avail: Array  # [..., A] bool
    last_action: Array  # [...] int32, its own previous action, NO_ACTION at the start of an episode
    slot: Array  # [...] int32, its seat in the team, 0..M-1
    told: Array | None = None  # [..., K + M] who is in its team (`naht.teams.sampler.describe`), if anybody asks


class Policy(Protocol):
    """Pure functions over any leading axes. Implementations are frozen dataclasses: equal settings, equal policy.

    Memory is a pytree whose leaves begin with the same leading axes as the percept; it is cleared by the caller when
    an episode starts (with `initial_memory`).
    """

    def init(self, key: Array) -> PyTree:
        """Fresh parameters; an empty tuple for policies without any. Called outside compiled code."""
        ...

    def initial_memory(self, batch: tuple[int, ...]) -> PyTree:
        """The memory at the start of an episode, for a batch of seats."""
        ...

    def act(
        self, params: PyTree, memory: PyTree, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, Array]:
        """Returns (actions [...] int32, new memory, log-probability of these actions [...])."""
        ...


MASKED = -1e30
"""The logit of a forbidden action: its probability underflows to exactly 0."""


def masked_log_probs(logits: Array, avail: Array) -> Array:
    """Log-probabilities [..., A] of a categorical policy that never takes a forbidden action."""
    return jax.nn.log_softmax(jnp.where(avail, logits, MASKED))


def pick(log_probs: Array, index: Array) -> Array:
    """log_probs [..., A] at index [...] -> [...]. By comparison: the gradient of a lookup would be a slow scatter."""
    return jnp.where(index[..., None] == jnp.arange(log_probs.shape[-1]), log_probs, 0.0).sum(-1)


def choose(log_probs: Array, key: Array, greedy: bool) -> tuple[Array, Array]:
    """Draw (or take the best) action. log_probs [..., A] -> (actions [...] int32, their log-probabilities [...])."""
    action = log_probs.argmax(-1) if greedy else jax.random.categorical(key, log_probs)
    action = action.astype(jnp.int32)
    return action, pick(log_probs, action)
