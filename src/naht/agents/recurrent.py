"""The learning agent's policy: a recurrent actor, with or without a teammate model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from naht.agents.networks import NetworkConfig, RecurrentNetwork, agent_inputs, init_params, input_size
from naht.agents.policy import Percept, choose, masked_log_probs
from naht.agents.teammate_model import Encoder, ModelConfig, TeammateDecoders, teammates_of
from naht.config import setting
from naht.devices import zeros
from naht.envs.base import Array, EnvSpec, PyTree
from naht.errors import require


class RecurrentMemory(NamedTuple):
    actor: Array  # [..., H]
    encoder: Array  # [..., H of the model]; width 0 without a model


class RecurrentParams(NamedTuple):
    actor: PyTree
    encoder: PyTree  # empty without a model


Told = Literal["nothing", "strangers", "seats", "both"]
"""What an agent is told of its team: which members of U are in it, which seats are controlled."""


def told_columns(told: Told, strangers: int, num_agents: int) -> slice:
    """Which columns of `naht.teams.sampler.describe` that is, with so many members of U."""
    ends = {"nothing": (0, 0), "strangers": (0, strangers), "seats": (strangers, strangers + num_agents)}
    return slice(*ends.get(told, (0, strangers + num_agents)))


@setting
@dataclass(frozen=True)
class RecurrentPolicy:
    """pi(a | history, team embedding); without a `model` there is no embedding and this is a plain recurrent actor."""

    spec: EnvSpec
    network: NetworkConfig = NetworkConfig()
    model: ModelConfig | None = None
    told: Told = "nothing"
    """What the actor is told of its team: no policy for strangers, but a bound on what knowing them could be worth."""
    strangers: int = 0
    """Members of the population that it is told about."""

    @property
    def actor(self) -> RecurrentNetwork:
        return RecurrentNetwork(self.network, self.spec.num_actions, output_scale=0.01)

    @property
    def encoder(self) -> Encoder:
        assert self.model is not None
        return Encoder(self.model)

    @property
    def embedding_size(self) -> int:
        return self.model.embedding if self.model else 0

    @property
    def encoder_size(self) -> int:
        return self.model.hidden if self.model else 0

    @property
    def input_size(self) -> int:
        """The width of `inputs`."""
        return input_size(self.network, self.spec)

    @property
    def told_columns(self) -> slice:
        """What it reads of a description of its team."""
        return told_columns(self.told, self.strangers, self.spec.num_agents)

    def inputs(self, obs: Array, last_action: Array, slot: Array) -> Array:
        """What the networks read: [..., O], [...], [...] -> [..., I]."""
        return agent_inputs(self.network, self.spec, obs, last_action, slot)

    def init(self, key: Array) -> RecurrentParams:
        k_actor, k_encoder = jax.random.split(key)
        x, first = zeros(1, 1, self.input_size), zeros(1, 1, dtype=bool)
        encoder = init_params(self.encoder, k_encoder, x, zeros(1, self.encoder_size), first) if self.model else {}
        columns = self.told_columns
        x = zeros(1, 1, self.input_size + self.embedding_size + columns.stop - columns.start)
        actor = init_params(self.actor, k_actor, x, zeros(1, self.network.hidden), first)
        return RecurrentParams(actor, encoder)

    def initial_memory(self, batch: tuple[int, ...]) -> RecurrentMemory:
        return RecurrentMemory(jnp.zeros((*batch, self.network.hidden)), jnp.zeros((*batch, self.encoder_size)))

    def embed(self, params: RecurrentParams, x: Array, h0: Array, first: Array) -> tuple[Array, Array]:
        """Team embeddings over time: x [T, R, I], h0 [R, H], first [T, R] -> ([T, R, E], hidden states [T, R, H])."""
        if self.model is None:
            return jnp.zeros((*x.shape[:2], 0)), jnp.zeros((*x.shape[:2], 0))
        return self.encoder.apply(params.encoder, x, h0, first)

    def _embed_now(
        self, params: RecurrentParams, memory: RecurrentMemory, percept: Percept
    ) -> tuple[Array, Array, Array, Array]:
        """One step of a batch of R seats: (inputs [1, R, I], first [1, R], embeddings [1, R, E], hidden states)."""
        rows = percept.slot.size
        x = self.inputs(percept.obs, percept.last_action, percept.slot).reshape(1, rows, -1)
        first = jnp.zeros((1, rows), bool)
        return x, first, *self.embed(params, x, memory.encoder.reshape(rows, -1), first)

    def believe(
        self, params: RecurrentParams, decoders: PyTree, memory: RecurrentMemory, percept: Percept
    ) -> tuple[Array, Array]:
        """What the teammate model thinks that the others see and do: observations [..., M-1, O], action probabilities
        [..., M-1, A], of the teammates in the order of their seats. `decoders` are the parameters of its decoders."""
        require(self.model is not None, "this policy has no teammate model")
        assert self.model is not None
        *_, embedding, _ = self._embed_now(params, memory, percept)
        embedding = embedding.reshape(*percept.slot.shape, -1)
        seats = teammates_of(percept.slot, self.spec.num_agents)
        obs, logits = TeammateDecoders(self.model, self.spec).apply(decoders, embedding, seats)
        return obs, jax.nn.softmax(logits)

    def act(
        self, params: RecurrentParams, memory: RecurrentMemory, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, RecurrentMemory, Array]:
        batch, num_rows = percept.slot.shape, percept.slot.size
        x, first, embedding, h_encoder = self._embed_now(params, memory, percept)
        h_actor = memory.actor.reshape(num_rows, -1)
        read = [x, embedding]
        if self.told != "nothing":
            width = 0 if percept.told is None else percept.told.shape[-1]
            known = f"an agent that is told its team knows {self.strangers} possible ones"
            require(width == self.strangers + self.spec.num_agents, f"{known}: it plays with that population only")
            assert percept.told is not None
            read.append(percept.told[..., self.told_columns].reshape(1, num_rows, -1))
        logits, h_actor = self.actor.apply(params.actor, jnp.concatenate(read, -1), h_actor, first)
        action, log_prob = choose(masked_log_probs(logits.reshape(*batch, -1), percept.avail), key, greedy)
        new = RecurrentMemory(h_actor, h_encoder)
        return action, jax.tree.map(lambda h: h.reshape(*batch, h.shape[-1]), new), log_prob
