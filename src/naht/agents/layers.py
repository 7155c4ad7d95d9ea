"""A network's step as a list of layers: data, from which its parameters are checked, it is run, and it is exported.

Parameters have the names, shapes and meaning that they have in PyTorch: matrices are [out, in], a GRU has its gates in
the order reset, update, new, and two biases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from naht.agents.networks import gru
from naht.agents.policy import Percept
from naht.envs.base import Array, EnvSpec

T = TypeVar("T")
Kind = Literal["join", "linear", "relu", "norm", "gru", "choose"]


class Layer(NamedTuple):
    """What it reads and gives are names of arrays [..., width]."""

    kind: Kind
    reads: tuple[str, ...]
    gives: str
    width: int
    """Of what it gives."""
    weights: str = ""
    """What the names of its parameters begin with; a norm may have none."""
    epsilon: float = 0.0
    """Of a norm: added to the variance."""

    def of(self, params: dict[str, T], *parts: str) -> list[T]:
        """Its own parameters."""
        return [params[f"{self.weights}.{part}"] for part in parts]


class Memory(NamedTuple):
    """What is kept for the next step; zeros when an episode starts."""

    width: int
    becomes: str
    """The name of its new value."""


Shape = tuple[int, ...]


@dataclass
class Network:
    """Grows layer by layer: each of these methods adds one and returns the name of what it gives.

    It reads `obs`, the one-hot `last_action` (zeros at the start of an episode) and the one-hot `seat`.
    """

    spec: EnvSpec
    widths: dict[str, int] = field(init=False)
    """Of everything that is read or given."""
    shapes: dict[str, Shape] = field(default_factory=dict)
    """Of all parameters."""
    layers: list[Layer] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    scores: str = ""
    """The name of what is given for each action: its value, or its logit."""

    def __post_init__(self) -> None:
        s = self.spec
        self.widths = {"obs": s.obs_size, "last_action": s.num_actions, "seat": s.num_agents}

    def _add(self, kind: Kind, reads: tuple[str, ...], width: int, weights: str = "", epsilon: float = 0.0) -> str:
        gives = f"{len(self.layers)}"
        self.layers.append(Layer(kind, reads, gives, width, weights, epsilon))
        self.widths[gives] = width
        return gives

    def join(self, *xs: str) -> str:
        """One after the other."""
        return xs[0] if len(xs) == 1 else self._add("join", xs, sum(self.widths[x] for x in xs))

    def linear(self, x: str, width: int, weights: str) -> str:
        """x W^T + b."""
        self.shapes |= {f"{weights}.weight": (width, self.widths[x]), f"{weights}.bias": (width,)}
        return self._add("linear", (x,), width, weights)

    def relu(self, x: str) -> str:
        return self._add("relu", (x,), self.widths[x])

    def norm(self, x: str, epsilon: float, weights: str = "") -> str:
        """Mean 0 and variance 1 over the last axis, then scaled and shifted if it has weights."""
        width = self.widths[x]
        if weights:
            self.shapes |= {f"{weights}.weight": (width,), f"{weights}.bias": (width,)}
        return self._add("norm", (x,), width, weights, epsilon)

    def gru(self, x: str, h: str, width: int, weights: str) -> str:
        """A step of a GRU whose state is the memory h, which is still to be `kept`."""
        inputs, self.widths[h] = self.widths[x], width
        self.shapes |= {f"{weights}.weight_ih": (3 * width, inputs), f"{weights}.weight_hh": (3 * width, width)}
        self.shapes |= {f"{weights}.bias_ih": (3 * width,), f"{weights}.bias_hh": (3 * width,)}
        return self._add("gru", (x, h), width, weights)

    def choose(self, which: str, *xs: str) -> str:
        """The one of several that a one-hot points at."""
        return self._add("choose", (which, *xs), self.widths[xs[0]])

    def keep(self, memory: str, becomes: str) -> None:
        self.memory[memory] = Memory(self.widths[becomes], becomes)

    def as_data(self) -> dict[str, Any]:
        """As plain data, for a file."""
        s = self.spec
        return {
            "task": s.name,
            "inputs": {"obs": s.obs_size, "last_action": s.num_actions, "seat": s.num_agents},
            "memory": {name: memory._asdict() for name, memory in self.memory.items()},
            "layers": [layer._asdict() | {"reads": list(layer.reads)} for layer in self.layers],
            "scores": self.scores,
        }

    def initial_memory(self, batch: Shape) -> dict[str, Array]:
        return {name: jnp.zeros((*batch, memory.width)) for name, memory in self.memory.items()}

    def run(
        self, params: dict[str, Array], memory: dict[str, Array], percept: Percept
    ) -> tuple[Array, dict[str, Array]]:
        """One step of any number of seats: (scores [..., A] of all actions, allowed or not, memory for the next)."""
        values = memory | {
            "obs": percept.obs,
            "last_action": jax.nn.one_hot(percept.last_action, self.spec.num_actions),
            "seat": jax.nn.one_hot(percept.slot, self.spec.num_agents),
        }
        for layer in self.layers:
            values[layer.gives] = _compute(layer, params, *[values[name] for name in layer.reads])
        return values[self.scores], {name: values[memory.becomes] for name, memory in self.memory.items()}


def _compute(layer: Layer, params: dict[str, Array], *xs: Array) -> Array:
    """What a layer gives: [..., width]."""
    match layer.kind:
        case "join":
            return jnp.concatenate(xs, -1)
        case "linear":
            weight, bias = layer.of(params, "weight", "bias")
            return xs[0] @ weight.T + bias
        case "relu":
            return jax.nn.relu(xs[0])
        case "norm":
            centred = xs[0] - xs[0].mean(-1, keepdims=True)
            y = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + layer.epsilon)
            scale, shift = layer.of(params, "weight", "bias") if layer.weights else (1.0, 0.0)
            return y * scale + shift
        case "gru":
            return _gru(*xs, *layer.of(params, "weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        case "choose":
            return (jnp.stack(xs[1:], -2) * xs[0][..., None]).sum(-2)


def _gru(x: Array, h: Array, w_in: Array, w: Array, b_in: Array, b: Array) -> Array:
    """PyTorch's GRU by ours, which has the hidden biases of reset and update among those of the input."""
    rows, size = prod(h.shape[:-1]), h.shape[-1]
    outside, inside = jnp.where(jnp.arange(3 * size) < 2 * size, b, 0.0), b[2 * size :]
    projected = (x @ w_in.T + b_in + outside).reshape(1, rows, 3 * size)
    return gru(projected, h.reshape(rows, size), jnp.zeros((1, rows), bool), w.T, inside).reshape(h.shape)
