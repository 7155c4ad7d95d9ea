"""REINFORCE with a recurrent policy: raise the probability of what was done by how much better than usual it went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import naht
from naht.agents.networks import NetworkConfig
from naht.agents.policy import masked_log_probs, pick
from naht.agents.recurrent import RecurrentParams, RecurrentPolicy
from naht.devices import SHARED, total


@naht.setting
@dataclass(frozen=True)
class ReinforceConfig:
    """Settings of REINFORCE."""

    num_envs: int = 64
    """Environments in a batch; each plays one horizon per update."""
    lr: float = 3e-3
    """Learning rate."""
    gamma: float = 0.99
    """Discount."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    network: NetworkConfig = NetworkConfig()
    """The actor."""

    def learner(self, spec: naht.EnvSpec, around: naht.Circumstances = naht.Circumstances()) -> Reinforce:  # noqa: B008
        return Reinforce(spec, self, around.devices)


class ReinforceState(NamedTuple):
    params: RecurrentParams
    optimiser: Any


@dataclass(frozen=True)
class Reinforce:
    """The learner. Axes: T steps, B environments, M agents; with several devices, each has its share of B."""

    spec: naht.EnvSpec
    config: ReinforceConfig
    devices: int = 1

    @property
    def num_envs(self) -> int:
        return self.config.num_envs

    @property
    def rollout_steps(self) -> int:
        return self.spec.horizon

    @property
    def policy(self) -> RecurrentPolicy:
        return RecurrentPolicy(self.spec, self.config.network)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.config.max_grad_norm), optax.adam(self.config.lr))

    @property
    def layout(self) -> Any:
        return ReinforceState(SHARED, SHARED)  # all devices have the same

    def init(self, key: jax.Array) -> ReinforceState:
        params = self.policy.init(key)
        return ReinforceState(params, self.optimiser.init(params))

    def init_experience(self) -> tuple[()]:
        return ()  # on-policy: nothing is kept

    def policy_params(self, state: ReinforceState) -> RecurrentParams:
        return state.params

    def decoder_params(self, state: ReinforceState) -> dict[str, Any]:
        del state
        return {}  # no teammate model

    def returns(self, tr: naht.Trajectory) -> jax.Array:
        """[T, B]: discounted rewards from each step to the end of its episode, or of the batch if that comes first."""

        def back(following: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            reward, done = step
            value = reward + self.config.gamma * jnp.where(done, 0.0, following)
            return value, value

        return jax.lax.scan(back, jnp.zeros(tr.reward.shape[1]), (tr.reward, tr.done), reverse=True)[1]

    def update(
        self, state: ReinforceState, experience: tuple[()], tr: naht.Trajectory, key: jax.Array, progress: jax.Array
    ) -> tuple[ReinforceState, tuple[()], dict[str, jax.Array]]:
        del experience, key, progress
        steps, rows = tr.reward.shape[0], tr.last_action[0].size
        ours = tr.team.controlled & tr.alive  # [T, B, M]: strangers' actions teach nothing here
        returns, mask = self.returns(tr), ours.any(-1)
        count = total(mask.sum(), self.devices)
        mean = total((returns * mask).sum(), self.devices) / count
        spread = jnp.sqrt(total(((returns - mean) ** 2 * mask).sum(), self.devices) / count)
        advantage = ((returns - mean) / (spread + 1e-6))[..., None]
        weight = ours / total(ours.sum(), self.devices)

        slot = jnp.broadcast_to(jnp.arange(self.spec.num_agents), tr.last_action.shape)
        x = self.policy.inputs(tr.obs, tr.last_action, slot).reshape(steps, rows, -1)
        first = jnp.repeat(tr.first, self.spec.num_agents, axis=1)
        memory = tr.start_memory[0].actor.reshape(rows, -1)  # of our one policy, at the batch's start

        def loss(params: RecurrentParams) -> tuple[jax.Array, jax.Array]:
            logits, _ = self.policy.actor.apply(params.actor, x, memory, first)
            log_probs = masked_log_probs(logits.reshape(*tr.avail.shape), tr.avail)
            chance = jnp.exp(log_probs)
            entropy = -(weight * (chance * jnp.where(chance > 0, log_probs, 0.0)).sum(-1)).sum()
            gain = (weight * advantage * pick(log_probs, tr.action)).sum()
            return -gain - self.config.entropy * entropy, entropy

        (value, entropy), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        value, entropy, gradient = total((value, entropy, gradient), self.devices)
        change, optimiser = self.optimiser.update(gradient, state.optimiser)
        metrics = {
            "policy/loss": value,
            "policy/entropy": entropy,
            "policy/gradient_norm": optax.tree.norm(gradient),
        }
        return ReinforceState(optax.apply_updates(state.params, change), optimiser), (), metrics


REINFORCE = naht.Algorithm(
    "REINFORCE with a recurrent policy, trained with strangers",
    ReinforceConfig,
    tasks={"mpe-pp": {"tuned": {"entropy": 0.02}}},
)
IN_SELF_PLAY = naht.Algorithm("REINFORCE in self-play", ReinforceConfig, num_controlled="all")
