"""Colours: agree without talking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

import naht
from naht.envs.base import opening


class State(NamedTuple):
    time: jax.Array  # [] int32
    shown: jax.Array  # [M] int32, everybody's last colour; -1 before the first


@naht.setting
@dataclass(frozen=True)
class Colours:
    """In every step each agent shows a colour, and the team earns the share of its largest group of one colour: it pays
    to find out what strangers show and to show the same.

    Observation: everybody's last colour as one-hots, [M * K], zeros before the first step; global state: the same.
    """

    num_agents: int = 3
    """Team size M."""
    colours: int = 4
    """K."""
    horizon: int = 20
    """Steps per episode."""

    @property
    def spec(self) -> naht.EnvSpec:
        size = self.num_agents * self.colours
        return naht.EnvSpec("colours", self.num_agents, size, size, num_actions=self.colours, horizon=self.horizon)

    def _show(self, state: State) -> naht.TimeStep:
        seen = jax.nn.one_hot(state.shown, self.colours).reshape(-1)
        return opening(jnp.tile(seen, (self.num_agents, 1)), seen, jnp.ones((self.num_agents, self.colours), bool))

    def reset(self, key: jax.Array) -> tuple[State, naht.TimeStep]:
        del key
        state = State(jnp.zeros((), jnp.int32), jnp.full(self.num_agents, -1, jnp.int32))
        return state, self._show(state)

    def step(self, key: jax.Array, state: State, actions: jax.Array) -> tuple[State, naht.TimeStep]:
        del key
        state = State(state.time + 1, actions.astype(jnp.int32))
        largest = jax.nn.one_hot(actions, self.colours).sum(0).max() / self.num_agents
        return state, self._show(state)._replace(reward=largest, truncated=state.time >= self.horizon)


COLOURS = naht.Task(
    "M agents show colours; the team earns the share of its largest group",
    Colours,
    teammates=("stubborn", "copycat"),
    presets={"tuned": naht.Defaults(steps=200_000, test_every=20_000, test_episodes=128)},
)
