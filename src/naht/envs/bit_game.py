"""The bit game: exactly one agent should say 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from naht.config import setting
from naht.envs.base import Array, EnvSpec, Horizon, TeamSize, TimeStep, opening
from naht.errors import require


class BitGameState(NamedTuple):
    time: Array  # [] int32, steps taken
    last: Array  # [M] int32, the previous joint action; -1 before the first


@setting
@dataclass(frozen=True)
class BitGame:
    """Each step every agent picks a bit; the team earns M when exactly one bit is 1.

    Observation of agent i (2M numbers): its index as a one-hot [M], then the previous joint action [M], each bit 0 or 1
    (-1 before the first step, so that "nobody has acted yet" differs from "everybody said 0").
    Global state: the previous joint action and the fraction of the episode that has passed. All actions are always
    allowed, nobody dies, and the episode ends (truncated) after `horizon` steps.
    """

    num_agents: TeamSize = 3
    """Team size M."""
    horizon: Horizon = 25
    """Steps per episode."""

    all_allowed = True

    def __post_init__(self) -> None:
        require(self.num_agents >= 2, f"num_agents is {self.num_agents}: the bit game needs at least 2 agents")

    @property
    def spec(self) -> EnvSpec:
        m = self.num_agents
        return EnvSpec("bit-game", m, obs_size=2 * m, state_size=m + 1, num_actions=2, horizon=self.horizon)

    def _view(self, state: BitGameState) -> TimeStep:
        m = self.num_agents
        previous = state.last.astype(jnp.float32)
        obs = jnp.concatenate([jnp.eye(m), jnp.broadcast_to(previous, (m, m))], axis=1)
        clock = (state.time / self.horizon).astype(jnp.float32)
        return opening(obs, jnp.append(previous, clock), jnp.ones((m, 2), bool))

    def reset(self, key: Array) -> tuple[BitGameState, TimeStep]:
        del key
        state = BitGameState(jnp.zeros((), jnp.int32), jnp.full(self.num_agents, -1, jnp.int32))
        return state, self._view(state)

    def step(self, key: Array, state: BitGameState, actions: Array) -> tuple[BitGameState, TimeStep]:
        del key
        state = BitGameState(state.time + 1, actions.astype(jnp.int32))
        won = actions.sum() == 1
        reward = jnp.where(won, float(self.num_agents), 0.0)
        return state, self._view(state)._replace(reward=reward, truncated=state.time >= self.horizon)
