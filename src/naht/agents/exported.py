"""Agents for use without naht: their networks as a list of layers with weights, for PyTorch, or as a model in ONNX."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from naht.agents.epymarl import EpymarlPolicy
from naht.agents.layers import Layer, Network
from naht.agents.networks import NetworkConfig
from naht.agents.policy import MASKED
from naht.agents.recurrent import RecurrentPolicy
from naht.agents.saved import Agent
from naht.agents.teammate_model import ModelConfig
from naht.agents.value import ValuePolicy
from naht.envs.base import EnvSpec, PyTree
from naht.envs.torch_file import torch_file
from naht.errors import NahtError, require
from naht.storage import write_file
from naht.version import __version__

Format = Literal["torch", "onnx"]
Weights = dict[str, np.ndarray]

EPSILON = 1e-6
"""Of our own LayerNorm."""
OPSET, IR_VERSION = 17, 8
"""Of ONNX: the first with LayerNorm, of 2022."""


def check_export(agent: Agent, form: Format) -> None:
    """Can it be written in this form? To be asked before any work."""
    described(agent)
    there = form != "onnx" or find_spec("onnx") is not None
    require(there, "writing ONNX needs the package onnx: pip install onnx")


def write_export(agent: Agent, path: Path, form: Format) -> None:
    """Write an agent that can be exported."""
    network, weights = described(agent)
    facts = {"name": agent.name, "task": agent.spec.name, "naht": __version__}
    if form == "torch":
        write_file(path, torch_file(weights, facts | {"network": network.as_data()}))
    else:
        write_file(path, onnx_file(network, weights, facts))


def described(agent: Agent) -> tuple[Network, Weights]:
    """What an agent computes in a step, as layers, and their weights. One without such a network is a `NahtError`."""
    params = agent.params
    match agent.policy:
        case EpymarlPolicy() as policy:
            network, weights = policy.network, params
        case RecurrentPolicy() as policy:
            require(policy.told == "nothing", f"{agent.name} is told its team, and nobody would tell an exported one")
            network = _ours(policy.spec, policy.network, policy.model)
            weights = _weights("actor", params.actor) | _weights("encoder", params.encoder)
        case ValuePolicy() as policy:
            network, weights = _ours(policy.spec, policy.network), _weights("actor", params.network)
        case policy:
            kind = type(policy).__name__
            raise NahtError(f"{agent.name} is a {kind}: only agents with a network of ours or ePyMARL's are exported")
    return network, {name: np.asarray(weights[name], np.float32) for name in network.shapes}


def _ours(spec: EnvSpec, config: NetworkConfig, model: ModelConfig | None = None) -> Network:
    """Our own networks: `RecurrentNetwork`, with the `Encoder` of a teammate model or without."""
    network = Network(spec)
    reads = ["obs", "last_action", "seat"] if config.history else ["obs"]
    if model:
        hidden = network.gru(network.join(*reads), "encoder", model.hidden, "encoder.GRU_0")
        network.keep("encoder", hidden)
        y = network.relu(network.linear(hidden, model.hidden, "encoder.Dense_0"))
        reads.append(network.linear(y, model.embedding, "encoder.Dense_1"))
    x = network.join(*reads)
    if config.input_norm:
        x = network.norm(x, EPSILON)
    for i in range(config.layers):
        x = network.relu(network.linear(x, config.hidden, f"actor.Dense_{i}"))
        if config.layer_norm:
            x = network.norm(x, EPSILON)
    if config.history:
        x = network.gru(x, "actor", config.hidden, "actor.GRU_0")
        network.keep("actor", x)
        if config.layer_norm:
            x = network.norm(x, EPSILON)
    network.scores = network.linear(x, spec.num_actions, f"actor.Dense_{config.layers}")
    return network


def _weights(prefix: str, params: PyTree) -> Weights:
    """The parameters of our dense layers and GRUs as PyTorch has them."""
    found: Weights = {}
    for name, layer in params.get("params", {}).items():
        p = {part: np.asarray(a) for part, a in layer.items()}
        if "candidate_bias" in p:
            inside = p["candidate_bias"]
            parts = {"weight_ih": p["input_kernel"].T, "weight_hh": p["kernel"].T, "bias_ih": p["input_bias"]}
            parts["bias_hh"] = np.concatenate([np.zeros(2 * inside.size), inside])
        else:
            parts = {"weight": p["kernel"].T, "bias": p["bias"]}
        found |= {f"{prefix}.{name}.{part}": a for part, a in parts.items()}
    return found


def onnx_file(network: Network, weights: Weights, facts: dict[str, str]) -> bytes:
    """A model of one step of B seats.

    It takes obs [B, O] float32, avail [B, A] bool, last_action [B] int64 (-1 at the start of an episode), seat [B]
    int64 and, under its names, memory [B, H] (zeros at the start); it gives the best allowed action [B] int64, the
    scores [B, A] of all, and memory, each under its name after "next_".
    """
    from onnx import TensorProto, checker, helper, numpy_helper

    s, graph = network.spec, _Graph()
    seen = {
        "last_action": graph.one_hot("last_action", s.num_actions),
        "seat": graph.one_hot("seat", s.num_agents),
    }
    for layer in network.layers:
        seen[layer.gives] = graph.layer(layer, [seen.get(name, name) for name in layer.reads], weights)
    graph.add("Identity", seen[network.scores], gives="scores")
    graph.add("ArgMax", graph.add("Where", "avail", "scores", np.float32(MASKED)), gives="action", axis=-1, keepdims=0)
    for name, memory in network.memory.items():
        graph.add("Identity", seen[memory.becomes], gives=f"next_{name}")

    def value(name: str, kind: int, *width: int) -> Any:
        return helper.make_tensor_value_info(name, kind, ["B", *width])

    inputs = [value("obs", TensorProto.FLOAT, s.obs_size), value("avail", TensorProto.BOOL, s.num_actions)]
    inputs += [value(name, TensorProto.INT64) for name in ("last_action", "seat")]
    outputs = [value("action", TensorProto.INT64), value("scores", TensorProto.FLOAT, s.num_actions)]
    for name, memory in network.memory.items():
        inputs.append(value(name, TensorProto.FLOAT, memory.width))
        outputs.append(value(f"next_{name}", TensorProto.FLOAT, memory.width))
    nodes = [helper.make_node(op, takes, gives, **settings) for op, takes, gives, settings in graph.nodes]
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in graph.constants.items()]
    made = helper.make_graph(nodes, "agent", inputs, outputs, constants)
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, producer_name="naht", opset_imports=opset, ir_version=IR_VERSION)
    helper.set_model_props(model, facts)
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


class _Graph:
    """The operations of a model in ONNX, and the constants that they read."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, list[str], list[str], dict[str, Any]]] = []
        self.constants: Weights = {}

    def add(self, op: str, *takes: Any, gives: str = "", skip: int = 0, **settings: Any) -> str:
        """Takes names and arrays; returns the name of what it gives, after as many other results as are skipped."""
        names = [x if isinstance(x, str) else self._constant(x) for x in takes]
        gives = gives or f"value{len(self.nodes)}"
        self.nodes.append((op, names, [""] * skip + [gives], settings))
        return gives

    def _constant(self, value: np.ndarray) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return name

    def one_hot(self, index: str, width: int) -> str:
        """[B] -> [B, width]; nothing for -1, which ONNX's own would take for the last one."""
        same = self.add("Equal", self.add("Unsqueeze", index, np.array([1])), np.arange(width, dtype=np.int64))
        return self.add("Cast", same, to=1)  # float32

    def layer(self, layer: Layer, reads: list[str], weights: Weights) -> str:
        match layer.kind:
            case "join":
                return self.add("Concat", *reads, axis=-1)
            case "linear":
                return self.add("Gemm", *reads, *layer.of(weights, "weight", "bias"), transB=1)
            case "relu":
                return self.add("Relu", *reads)
            case "norm":
                own = layer.of(weights, "weight", "bias") if layer.weights else [np.ones(layer.width, np.float32)]
                return self.add("LayerNormalization", *reads, *own, axis=-1, epsilon=layer.epsilon)
            case "gru":
                x, h = reads
                return self._gru(x, h, *layer.of(weights, "weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            case "choose":
                one_hot, *xs = (self.add("Unsqueeze", x, np.array([2 if i == 0 else 1])) for i, x in enumerate(reads))
                marked = self.add("Mul", self.add("Concat", *xs, axis=1), one_hot)
                return self.add("ReduceSum", marked, np.array([1]), keepdims=0)

    def _gru(self, x: str, h: str, *weights: np.ndarray) -> str:
        """ONNX's is for sequences, and has its gates in the order update, reset, new."""
        w_in, w, b_in, b = (np.concatenate([a[1], a[0], a[2]]) for a in (np.split(a, 3) for a in weights))
        x, h = (self.add("Unsqueeze", name, np.array([0])) for name in (x, h))
        parts = (w_in[None], w[None], np.concatenate([b_in, b])[None], "", h)
        after = self.add("GRU", x, *parts, skip=1, hidden_size=w.shape[1], linear_before_reset=1)
        return self.add("Squeeze", after, np.array([0]))
