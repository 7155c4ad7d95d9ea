"""A batch of experience as rows: an agent's part of an episode, or of a sequence cut from it.

Axes: R rows, L steps of a sequence, C rows that are computed at once, T steps of the whole batch, M agents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from naht.envs.base import Array


class AgentRows(NamedTuple):
    """What the losses of actor and critic read: one row per agent and sequence, [R, L, ...]."""

    x: Array  # [R, L, I] observation, last action, seat
    embedding: Array  # [R, L, E] of the team, as at collection: a constant for PPO
    first: Array  # [R, L] bool
    avail: Array  # [R, L, A] bool
    action: Array  # [R, L] int32
    log_prob: Array  # [R, L] at collection
    advantage: Array  # [R, L]
    value: Array  # [R, L] at collection
    target: Array  # [R, L]
    actor_weight: Array  # [R, L] float: data that train the actor, and the model of others
    critic_weight: Array  # [R, L] float: data that train the critic
    actor_h0: Array  # [R, H] before the first step, or [R, L, H] stored for every step
    critic_h0: Array  # likewise
    encoder_h0: Array  # [R, H of the model]


class TeamRows(NamedTuple):
    """What agents of a team share and what the teammate model predicts: a row per team and sequence."""

    global_state: Array  # [R / M, L, S]; width 0 unless the critic reads it
    obs: Array  # [R / M, L, M, O]
    action: Array  # [R / M, L, M] int32
    alive: Array  # [R / M, L, M] bool
    controlled: Array  # [R / M, L, M] bool


class Batch(NamedTuple):
    """A batch of experience cut into rows. Row r is the agent in slot r % M of team r // M."""

    agents: AgentRows
    teams: TeamRows

    def take(self, rows: Array) -> tuple[AgentRows, TeamRows, Array]:
        """Rows by index [C], time first: agents [L, C, ...], their teams [L, C, M, ...], their slots [C].

        Indices beyond the end give rows of zeros, which have no weight.
        """
        m = self.teams.obs.shape[2]

        def pick_rows(indices: Array, leaf: Array) -> Array:
            return jnp.take(leaf, indices, axis=0, mode="fill", fill_value=0)

        agents = jax.tree.map(lambda leaf: pick_rows(rows, leaf), self.agents)
        starts = ("actor_h0", "critic_h0", "encoder_h0")
        timed = {k: v.swapaxes(0, 1) for k, v in agents._asdict().items() if k not in starts or v.ndim == 3}
        teams = jax.tree.map(lambda leaf: pick_rows(rows // m, leaf).swapaxes(0, 1), self.teams)
        return agents._replace(**timed), teams, rows % m


class Histories(NamedTuple):
    """All that agents have seen in a batch, a row per agent."""

    x: Array  # [R, T, I] observation, last action, seat
    first: Array  # [R, T] bool
    global_state: Array  # [R, T, S]; width 0 unless the critic reads it
    x_next: Array  # [R, K, I] after each of the last K steps, before any restart
    global_state_next: Array  # [R, K, S]
    actor_start: Array  # [R, H] before the first step
    encoder_start: Array  # [R, H of the model]
    critic_start: Array  # [R, H]


class LookBack(NamedTuple):
    """What the networks make of histories. Memories are those before each step, of width 0 where nobody reads them."""

    embedding: Array  # [R, T, E]
    values: Array  # [R, T]
    next_values: Array  # [R, T], of what follows each step
    actor_memory: Array  # [R, T, H]
    critic_memory: Array  # [R, T, H]
    encoder_memory: Array  # [R, T, H of the model]
    encoder_end: Array  # [R, H of the model], after the last step
    critic_end: Array  # [R, H]


Network = Callable[[Array, Array, Array], tuple[Array, Array]]


def unroll(network: Network, x: Array, h0: Array, first: Array) -> tuple[Array, Array]:
    """Run a recurrent network over x [L, R, I] with first [L, R]. Returns outputs and hidden states [L, R, ...].

    h0 [R, H] is the hidden state before the first step: the network runs through time. h0 [L, R, H] has one state for
    every step: each step stands alone and no gradient flows through time.
    """
    if h0.ndim == 2:
        return network(x, h0, first)
    steps, rows = first.shape
    y, hidden = network(x.reshape(1, steps * rows, -1), h0.reshape(steps * rows, -1), first.reshape(1, -1))
    return y.reshape(steps, rows, -1), hidden.reshape(steps, rows, -1)


def before(hidden: Array, start: Array) -> Array:
    """States after each step [T, ...] and before the first [...] -> states before each step [T, ...]."""
    return jnp.concatenate([start[None], hidden[:-1]])


def concat(*parts: Array) -> Array:
    """What actor and critic read: [..., I], [..., E], ... -> [..., I + E + ...]."""
    return jnp.concatenate([part for part in parts if part.shape[-1]], axis=-1)
