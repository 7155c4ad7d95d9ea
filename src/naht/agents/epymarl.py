"""The networks of ePyMARL and of the NAHT paper's authors: same parameters, same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from naht.agents.layers import Network, Shape
from naht.agents.policy import Percept, choose, masked_log_probs
from naht.agents.value import epsilon_greedy
from naht.config import Amount, Width, setting
from naht.envs.base import Array, EnvSpec
from naht.errors import require

EPSILON = 1e-5
"""Of PyTorch's LayerNorm."""

Architecture = Literal["rnn", "rnn_norm", "rnn_poam"]
Output = Literal["q", "pi_logits"]


@setting
@dataclass(frozen=True)
class EpymarlPolicy:
    """An agent of ePyMARL. `rnn` is its own network; the paper's authors have `rnn_norm` and `rnn_poam` besides.

    Parameters are a dictionary by their names in the file.
    """

    spec: EnvSpec
    architecture: Architecture
    output: Output
    """Values of actions, of which the best is taken, or logits, of which one is drawn unless greedy."""
    hidden: Width = 64
    last_action: bool = True
    """It reads its last action."""
    seat_id: bool = True
    """It reads its seat."""
    recurrent: bool = True
    """False: a dense layer in the place of the GRU."""
    input_norm: bool = True
    """LayerNorm of the input (`rnn_norm`, `rnn_poam`)."""
    per_seat: bool = False
    """Weights of its own for every seat."""
    encoder_hidden: Width = 64
    """Width of the encoder (`rnn_poam`)."""
    encoder_layers: Amount = 1
    """Its dense layers."""
    embedding: Width = 64
    """Numbers that it gives to the policy."""
    old_encoder: bool = False
    """The first version, which keeps the output of its GRU; later ones keep that of their last dense layer."""

    def __post_init__(self) -> None:
        known = self.architecture != "rnn_poam" or not self.per_seat
        require(known, "rnn_poam has one set of weights: there is none with weights for every seat")

    @property
    def network(self) -> Network:
        """What it computes in a step."""
        net = Network(self.spec)
        numbers = range(self.spec.num_agents) if self.per_seat else ()
        heads = [self._head(net, f"agents.{i}.") for i in numbers] or [self._head(net, "")]

        def own(*each: str) -> str:
            return net.choose("seat", *each) if self.per_seat else each[0]

        scores, hidden = zip(*heads, strict=True)
        net.scores = own(*scores)
        if self.recurrent:
            net.keep("hidden", own(*hidden))
        return net

    def _head(self, net: Network, prefix: str) -> tuple[str, str]:
        """(scores, new hidden state) by the weights whose names begin with `prefix`."""
        parts = ["last_action"] * self.last_action + ["seat"] * self.seat_id
        x = net.join("obs", *parts)
        if self.architecture == "rnn":
            x = net.relu(net.linear(x, self.hidden, f"{prefix}fc1"))
        else:
            if self.architecture == "rnn_poam":
                x = net.join(self._embedding(net), x)
            if self.input_norm:
                x = net.norm(x, EPSILON, f"{prefix}base.feature_norm")
            for block in ("base.mlp.fc1", "base.mlp.fc2.0"):
                x = net.relu(net.linear(x, self.hidden, f"{prefix}{block}.0"))
                x = net.norm(x, EPSILON, f"{prefix}{block}.2")
            if self.architecture == "rnn_poam":
                x = net.relu(x)
        if self.recurrent:
            y = h = net.gru(x, "hidden", self.hidden, f"{prefix}rnn")
            if self.architecture != "rnn":
                y = net.norm(h, EPSILON, f"{prefix}rnn_norm")
        else:
            y = h = net.relu(net.linear(x, self.hidden, f"{prefix}rnn"))
        return net.linear(y, self.spec.num_actions, f"{prefix}fc2"), h

    def _embedding(self, net: Network) -> str:
        """What the encoder of `rnn_poam` makes of the history. It never reads the seat, and always the last action."""
        width = self.encoder_hidden
        output = y = net.gru(net.join("obs", "last_action"), "encoder_hidden", width, "encoder.rnn")
        names = ["encoder.fc1"] if self.old_encoder else [f"encoder.fc_list.{i}" for i in range(self.encoder_layers)]
        for name in names:
            y = net.relu(net.linear(y, width, name))
        net.keep("encoder_hidden", output if self.old_encoder else y)
        return net.linear(y, self.embedding, "encoder.embedding")

    @property
    def unused(self) -> dict[str, Shape]:
        """Parameters that are in a file and take part in nothing: left-overs of how layers were cloned."""
        if self.architecture == "rnn":
            return {}
        n, prefixes = self.hidden, [f"agents.{i}." for i in range(self.spec.num_agents)] if self.per_seat else [""]
        parts = {"0.weight": (n, n), "0.bias": (n,), "2.weight": (n,), "2.bias": (n,)}
        found: dict[str, Shape] = {f"{p}base.mlp.fc_h.{part}": s for p in prefixes for part, s in parts.items()}
        if self.architecture == "rnn_poam" and not self.old_encoder:
            g = self.encoder_hidden
            found |= {"encoder.fc_h.weight": (g, g), "encoder.fc_h.bias": (g,)}
        return found

    def init(self, key: Array) -> dict[str, Array]:
        """Matrices are drawn with variance 1 / inputs."""

        def fresh(i: int, name: str, shape: Shape) -> Array:
            if len(shape) == 1:
                return jnp.full(shape, float(name.endswith("weight")))
            return jax.random.normal(jax.random.fold_in(key, i), shape) / shape[1] ** 0.5

        return {name: fresh(i, name, shape) for i, (name, shape) in enumerate(self.network.shapes.items())}

    def initial_memory(self, batch: tuple[int, ...]) -> dict[str, Array]:
        return self.network.initial_memory(batch)

    def act(
        self, params: dict[str, Array], memory: dict[str, Array], percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, dict[str, Array], Array]:
        scores, memory = self.network.run(params, memory, percept)
        chances = partial(epsilon_greedy, epsilon=0.0) if self.output == "q" else masked_log_probs
        action, log_prob = choose(chances(scores, percept.avail), key, greedy)
        return action, memory, log_prob
