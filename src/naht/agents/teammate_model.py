"""The teammate model of POAM: an encoder of the agent's own history and two decoders of everybody else."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from naht.agents.networks import GRU, dense
from naht.config import setting
from naht.envs.base import Array, EnvSpec


@setting
@dataclass(frozen=True)
class ModelConfig:
    """The shape of the teammate model."""

    hidden: int = 64
    """Width of the encoder's GRU and of all hidden layers."""
    embedding: int = 64
    """Size of the team embedding that the policy and the critic read."""


class Encoder(nn.Module):
    """GRU -> Dense, ReLU -> team embedding."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Array, h0: Array, first: Array) -> tuple[Array, Array]:
        """x [T, R, I], h0 [R, H], first [T, R] -> (embeddings [T, R, E], hidden states [T, R, H])."""
        hidden = GRU(self.config.hidden)(x, h0, first)
        y = nn.relu(dense(self.config.hidden)(hidden))
        return dense(self.config.embedding, 1.0)(y), hidden


def teammates_of(num_agents: int) -> np.ndarray:
    """[M, M-1]: row i lists the seats of everybody but i, in order."""
    return np.array([[j for j in range(num_agents) if j != i] for i in range(num_agents)])


class Decoder(nn.Module):
    """One head: what the embedding says about each teammate. The weights are shared over teammates.

    The input is the embedding and the one-hot seat of the teammate. The first layer is linear in that concatenation, so
    the embedding's part is computed once and the seat only adds its own row.
    """

    hidden: int
    outputs: int
    num_agents: int

    @nn.compact
    def __call__(self, embedding: Array) -> Array:
        """One embedding per modelling agent [..., M, E] -> predictions [..., M, M-1, outputs], as `teammates_of`."""
        seat = self.param("seat", nn.initializers.orthogonal(), (self.num_agents, self.hidden))
        y = dense(self.hidden)(embedding)[..., None, :] + seat[teammates_of(self.num_agents)]
        y = nn.relu(dense(self.hidden)(nn.relu(y)))
        return dense(self.outputs, 1.0)(y)


class TeammateDecoders(nn.Module):
    """Predicts each teammate's observation and the logits of its action."""

    config: ModelConfig
    spec: EnvSpec

    @nn.compact
    def __call__(self, embedding: Array) -> tuple[Array, Array]:
        """embedding [..., M, E] -> (observations [..., M, M-1, O], action logits [..., M, M-1, A])."""
        m = self.spec.num_agents
        obs = Decoder(self.config.hidden, self.spec.obs_size, m, name="observations")(embedding)
        logits = Decoder(self.config.hidden, self.spec.num_actions, m, name="actions")(embedding)
        return obs, logits


def others(per_agent: Array) -> Array:
    """Each agent's view of the others: [..., M, F] -> [..., M, M-1, F] in `teammates_of` order."""
    return jnp.take(per_agent, jnp.asarray(teammates_of(per_agent.shape[-2])), axis=-2)
