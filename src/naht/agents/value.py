"""The policy of value-based agents: a recurrent network of action values, with epsilon-greedy exploration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from naht.agents.networks import NetworkConfig, RecurrentNetwork, agent_inputs, init_params, input_size
from naht.agents.policy import MASKED, Percept, choose
from naht.config import setting
from naht.devices import zeros
from naht.envs.base import Array, EnvSpec, PyTree


class ValueParams(NamedTuple):
    network: PyTree
    epsilon: Array  # [] probability of a random action, unless greedy


@setting
@dataclass(frozen=True)
class ValuePolicy:
    """Takes the action of the highest value; without `greedy`, with probability epsilon any allowed action."""

    spec: EnvSpec
    network: NetworkConfig = NetworkConfig()

    @property
    def critic(self) -> RecurrentNetwork:
        """Its outputs are the values of all actions."""
        return RecurrentNetwork(self.network, self.spec.num_actions, output_scale=1.0)

    def inputs(self, obs: Array, last_action: Array, slot: Array) -> Array:
        """What the network reads: [..., O], [...], [...] -> [..., I]."""
        return agent_inputs(self.network, self.spec, obs, last_action, slot)

    def init(self, key: Array) -> ValueParams:
        x, memory = zeros(1, 1, input_size(self.network, self.spec)), zeros(1, self.network.hidden)
        return ValueParams(init_params(self.critic, key, x, memory, zeros(1, 1, dtype=bool)), zeros())

    def initial_memory(self, batch: tuple[int, ...]) -> Array:
        return jnp.zeros((*batch, self.network.hidden))

    def act(
        self, params: ValueParams, memory: Array, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, Array, Array]:
        batch, rows = percept.slot.shape, percept.slot.size
        x = self.inputs(percept.obs, percept.last_action, percept.slot).reshape(1, rows, -1)
        first = jnp.zeros((1, rows), bool)
        values, hidden = self.critic.apply(params.network, x, memory.reshape(rows, -1), first)
        log_probs = epsilon_greedy(values.reshape(*batch, -1), percept.avail, 0.0 if greedy else params.epsilon)
        action, log_prob = choose(log_probs, key, greedy)
        return action, hidden.reshape(memory.shape), log_prob


def best_action(values: Array, avail: Array) -> Array:
    """The allowed action of the highest value: values [..., A], avail [..., A] bool -> [...] int32."""
    return jnp.where(avail, values, MASKED).argmax(-1).astype(jnp.int32)


def epsilon_greedy(values: Array, avail: Array, epsilon: Array | float) -> Array:
    """Log-probabilities [..., A]: the best action, or with probability epsilon any allowed one."""
    best = jax.nn.one_hot(best_action(values, avail), values.shape[-1])
    anything = avail / jnp.maximum(avail.sum(-1, keepdims=True), 1)
    return jnp.maximum(jnp.log((1.0 - epsilon) * best + epsilon * anything), MASKED)
