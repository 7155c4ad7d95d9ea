"""The teammate model of POAM: an encoder of the agent's own history and two decoders of everybody else."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn

from naht.agents.networks import GRU, dense, orthogonal
from naht.config import Width, setting
from naht.envs.base import Array, EnvSpec


@setting
@dataclass(frozen=True)
class ModelConfig:
    """The shape of the teammate model."""

    hidden: Width = 64
    """Width of the encoder's GRU and of all hidden layers."""
    embedding: Width = 64
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


def teammate(slot: Array, place: Array) -> Array:
    """The seat of a teammate of the agent in seat slot [...]: the one at a place [...] of 0..M-2 among the others."""
    return place + (place >= slot)


def teammates_of(slot: Array, num_agents: int) -> Array:
    """The seats of everybody but the agent in seat slot [...], in order: [..., M-1]."""
    return teammate(slot[..., None], jnp.arange(num_agents - 1))


class Decoder(nn.Module):
    """One head: what the embedding says about each teammate. The weights are shared over teammates.

    The input is the embedding and the one-hot seat of the teammate. The first layer is linear in that concatenation, so
    the embedding's part is computed once and the seat only adds its own row.
    """

    hidden: int
    outputs: int
    num_agents: int

    @nn.compact
    def __call__(self, embedding: Array, seats: Array) -> Array:
        """Embeddings [..., E] and the seats [..., K] of K teammates -> predictions [..., K, outputs]."""
        seat = self.param("seat", orthogonal(), (self.num_agents, self.hidden))
        # A product, not a lookup, whose gradient would be a slow scatter.
        rows = jax.nn.one_hot(seats, self.num_agents) @ seat
        y = dense(self.hidden)(embedding)[..., None, :] + rows
        y = nn.relu(dense(self.hidden)(nn.relu(y)))
        return dense(self.outputs, 1.0)(y)


class TeammateDecoders(nn.Module):
    """Predicts each teammate's observation and the logits of its action."""

    config: ModelConfig
    spec: EnvSpec

    @nn.compact
    def __call__(self, embedding: Array, seats: Array) -> tuple[Array, Array]:
        """Embeddings [..., E], seats [..., K] -> (observations [..., K, O], action logits [..., K, A])."""
        m = self.spec.num_agents
        obs = Decoder(self.config.hidden, self.spec.obs_size, m, name="observations")(embedding, seats)
        logits = Decoder(self.config.hidden, self.spec.num_actions, m, name="actions")(embedding, seats)
        return obs, logits
