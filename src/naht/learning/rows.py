"""A batch of experience as rows: an agent's part of an episode, or of a sequence cut from it.

Axes: R rows, L steps of a sequence, C rows that are computed at once, T steps of the whole batch, M agents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from naht.agents.teammate_model import teammate, teammates_of
from naht.envs.base import Array


class AgentRows(NamedTuple):
    """What the losses read: one row per agent and sequence, [R, L, ...]."""

    x: Array  # [R, L, I] observation, last action, seat
    obs: Array  # [R, L, O] the same observation, for those who predict it
    embedding: Array  # [R, L, E] of the team, as at collection: a constant for PPO
    told: Array  # [R, L, K + M] the team itself (`naht.teams.sampler.describe`); width 0 unless somebody is told
    first: Array  # [R, L] bool
    avail: Array  # [R, L, A] bool
    action: Array  # [R, L] int32
    log_prob: Array  # [R, L] at collection
    advantage: Array  # [R, L]
    value: Array  # [R, L] at collection
    target: Array  # [R, L]
    actor_weight: Array  # [R, L] float: data that train the actor, and the model of others
    actor_count: Array  # [R, L] float: what the actor's means are over; the same, unless strangers are imitated
    imitation_weight: Array  # [R, L] float: how much a stranger's action is to be imitated
    critic_weight: Array  # [R, L] float: data that train the critic
    alive: Array  # [R, L] bool
    controlled: Array  # [R, L] bool
    num_pairs: Array  # [R, L] float: living teammates that this agent is to model
    actor_h0: Array  # [R, H] before the first step, or [R, L, H] stored for every step
    critic_h0: Array  # likewise
    encoder_h0: Array  # [R, H of the model]


class Turns(NamedTuple):
    """Which agents model their teammates, and with whom each begins."""

    rows: Array  # [..., C] int32
    first: Array  # [..., C] int32: of 0..M-2, the place among the others


class Teammates(NamedTuple):
    """What a teammate model predicts, of K teammates of each row."""

    seats: Array  # [L, C, K] int32, or [C, K] if they are the same in all steps
    obs: Array  # [L, C, K, O]
    action: Array  # [L, C, K] int32
    alive: Array  # [L, C, K] bool
    controlled: Array  # [L, C, K] bool


def pick_rows(indices: Array, leaf: Array) -> Array:
    """Indices beyond the end give zeros."""
    return jnp.take(leaf, indices, axis=0, mode="fill", fill_value=0)


class Batch(NamedTuple):
    """A batch of experience cut into rows. Row r is the agent in slot r % M of team r // M."""

    agents: AgentRows
    global_state: Array  # [R / M, L, S], a row per team; width 0 unless the critic reads it

    @property
    def num_agents(self) -> int:
        return self.agents.first.shape[0] // self.global_state.shape[0]

    def take(self, rows: Array) -> tuple[AgentRows, Array]:
        """Rows by index [C], time first: agents [L, C, ...] and the global states they were in [L, C, S].

        Indices beyond the end give rows of zeros, which have no weight.
        """
        agents = jax.tree.map(lambda leaf: pick_rows(rows, leaf), self.agents)
        starts = ("actor_h0", "critic_h0", "encoder_h0")
        timed = {k: v.swapaxes(0, 1) for k, v in agents._asdict().items() if k not in starts or v.ndim == 3}
        state = pick_rows(rows // self.num_agents, self.global_state).swapaxes(0, 1)
        return agents._replace(**timed), state


class Modelled(NamedTuple):
    """A batch as the teammate model reads it: agents and, in every step, some of their teammates.

    Teammates take turns. An agent that decodes K of them goes on with the next K in every step, so that a sequence is
    about everybody; where it begins is drawn at random, so that each pair is as likely as any other.
    """

    batch: Batch
    decoded: int  # K

    def take(self, turns: Turns) -> tuple[AgentRows, Teammates]:
        """These rows [C], time first."""
        agents, _ = self.batch.take(turns.rows)
        whole, m = self.batch.agents, self.batch.num_agents
        slot, team = turns.rows % m, turns.rows // m * m
        if self.decoded == m - 1:  # everybody, always: whole sequences, as published
            seats = teammates_of(slot, m)
            rows: tuple[Array, ...] = (team[:, None] + seats,)
        else:
            step = jnp.arange(whole.first.shape[1])[:, None]
            place = (turns.first[:, None, None] + step * self.decoded + jnp.arange(self.decoded)) % (m - 1)
            seats = teammate(slot[:, None, None], place)  # [C, L, K]
            rows = (team[:, None, None] + seats, step)
            seats = seats.swapaxes(0, 1)

        def of_teammates(leaf: Array) -> Array:
            found = leaf.at[rows].get(mode="fill", fill_value=0)  # [C, K, L, ...] or [C, L, K, ...]
            return jnp.moveaxis(found, 2 if len(rows) == 1 else 1, 0)

        seen = [of_teammates(leaf) for leaf in (whole.obs, whole.action, whole.alive, whole.controlled)]
        return agents, Teammates(seats, *seen)


class Histories(NamedTuple):
    """All that agents have seen in a batch, a row per agent."""

    x: Array  # [R, T, I] observation, last action, seat
    first: Array  # [R, T] bool
    global_state: Array  # [R, T, S]; width 0 unless the critic reads it
    told: Array  # [R, T, K + M] the team; width 0 unless somebody is told
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
    actor_end: Array  # [R, H]; width 0 unless strangers are imitated


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
