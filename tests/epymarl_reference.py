"""The networks of ePyMARL and of the paper's authors in plain NumPy, after their description, and files of theirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from naht import Percept, make_env
from naht.agents.foreign import Choices, find_checkpoint, import_agent
from torch_files import FORMATS, state_dictionary

ENV = make_env("bit-game")  # O = 6, A = 2, M = 3


@dataclass(frozen=True)
class Kind:
    """An architecture with its settings."""

    name: str
    last_action: bool = True
    seat: bool = True
    recurrent: bool = True
    input_norm: bool = True
    encoder: str = "fc_list"
    """'fc_list', or 'fc1' of the old one."""
    layers: int = 1
    """Of the encoder."""
    hidden: int = 7

    @property
    def plain(self):
        return self.name.removesuffix("_ns")

    @property
    def per_seat(self):
        return self.name.endswith("_ns")


G, E = 6, 4
"""Widths of the encoder and of its embedding."""


def shapes(kind, spec):
    """Of every key of agent.th."""
    o, a, m, h = spec.obs_size, spec.num_actions, spec.num_agents, kind.hidden
    inputs = o + a * kind.last_action + m * kind.seat

    def linear(name, rows, columns):
        return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}

    def norm(name, size):
        return {f"{name}.weight": (size,), f"{name}.bias": (size,)}

    def gru(name, size, columns):
        big = 3 * size
        weights = {f"{name}.weight_ih": (big, columns), f"{name}.weight_hh": (big, size)}
        return weights | {f"{name}.bias_ih": (big,), f"{name}.bias_hh": (big,)}

    found = gru("rnn", h, h) if kind.recurrent else linear("rnn", h, h)
    found |= linear("fc2", a, h)
    if kind.plain == "rnn":
        found |= linear("fc1", h, inputs)
    else:
        inputs += E * (kind.plain == "rnn_poam")
        found |= norm("base.feature_norm", inputs) if kind.input_norm else {}
        found |= linear("base.mlp.fc1.0", h, inputs) | norm("base.mlp.fc1.2", h)
        found |= linear("base.mlp.fc_h.0", h, h) | norm("base.mlp.fc_h.2", h)
        found |= linear("base.mlp.fc2.0.0", h, h) | norm("base.mlp.fc2.0.2", h)
        found |= norm("rnn_norm", h) if kind.recurrent else {}
    if kind.plain == "rnn_poam":
        found |= gru("encoder.rnn", G, o + a) | linear("encoder.embedding", E, G)
        if kind.encoder == "fc1":
            found |= linear("encoder.fc1", G, G)
        else:
            found |= linear("encoder.fc_h", G, G)
            for i in range(kind.layers):
                found |= linear(f"encoder.fc_list.{i}", G, G)
    if not kind.per_seat:
        return found
    return {f"agents.{i}.{name}": shape for i in range(m) for name, shape in found.items()}


def weights_of(kind, spec=ENV.spec, seed=0):
    """Random ones, the unused ones among them."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes(kind, spec).items():
        scale = shape[1] ** -0.5 if len(shape) == 2 else 0.5
        if "base.mlp.fc2.0.0" in name:
            scale /= 20  # so that a wrong epsilon shows
        weights[name] = rng.normal(size=shape, scale=scale).astype(np.float32)
    return weights


def by_hand(w, kind, spec, percepts):
    """Scores [T, ..., A] of T percepts, and all memories [T, ..., H] by name, in float64."""
    w = {name: a.astype(np.float64) for name, a in w.items()}

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gru(name, x, h):
        i = np.split(x @ w[f"{name}.weight_ih"].T + w[f"{name}.bias_ih"], 3, -1)
        j = np.split(h @ w[f"{name}.weight_hh"].T + w[f"{name}.bias_hh"], 3, -1)
        r, z = (1 / (1 + np.exp(-(i[k] + j[k]))) for k in (0, 1))
        return (1 - z) * np.tanh(i[2] + r * j[2]) + z * h

    def one_seat(p, obs, last_action, seat, h, c):
        last = np.zeros(spec.num_actions)
        if last_action >= 0:
            last[last_action] = 1
        x = np.concatenate([obs, *[last] * kind.last_action, *[np.eye(spec.num_agents)[seat]] * kind.seat])
        if kind.plain == "rnn":
            x = np.maximum(linear(f"{p}fc1", x), 0)
        else:
            if kind.plain == "rnn_poam":
                y = g = gru("encoder.rnn", np.concatenate([obs, last]), c)
                for name in ["fc1"] if kind.encoder == "fc1" else [f"fc_list.{i}" for i in range(kind.layers)]:
                    y = np.maximum(linear(f"encoder.{name}", y), 0)
                c = g if kind.encoder == "fc1" else y
                x = np.concatenate([linear("encoder.embedding", y), x])
            x = norm(f"{p}base.feature_norm", x) if kind.input_norm else x
            x = norm(f"{p}base.mlp.fc1.2", np.maximum(linear(f"{p}base.mlp.fc1.0", x), 0))
            x = norm(f"{p}base.mlp.fc2.0.2", np.maximum(linear(f"{p}base.mlp.fc2.0.0", x), 0))
            x = np.maximum(x, 0) if kind.plain == "rnn_poam" else x
        h = gru(f"{p}rnn", x, h) if kind.recurrent else np.maximum(linear(f"{p}rnn", x), 0)
        y = norm(f"{p}rnn_norm", h) if kind.recurrent and kind.plain != "rnn" else h
        return linear(f"{p}fc2", y), h, c

    obs, _, last_action, slot = map(np.asarray, percepts[:4])
    batch = slot.shape[1:]
    hidden, encoder = np.zeros((*batch, kind.hidden)), np.zeros((*batch, G))
    found = []
    for t in range(len(obs)):
        scores = np.zeros((*batch, spec.num_actions))
        for at in np.ndindex(batch):
            seat = slot[t][at]
            prefix = f"agents.{seat}." if kind.per_seat else ""
            scores[at], hidden[at], encoder[at] = one_seat(
                prefix, obs[t][at], last_action[t][at], seat, hidden[at], encoder[at]
            )
        found.append((scores, hidden.copy(), encoder.copy()))
    return [np.stack(each) for each in zip(*found, strict=True)]


def random_percepts(spec, batch, steps=5, seed=1):
    """T percepts of seats that sit anywhere and do anything that is allowed."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(steps, *batch, spec.obs_size)).astype(np.float32)
    avail = rng.random((steps, *batch, spec.num_actions)) < 0.7
    avail[..., 0] |= ~avail.any(-1)
    action = (rng.random(avail.shape) * avail).argmax(-1)
    last_action = np.concatenate([np.full((1, *batch), -1), action[:-1]]).astype(np.int32)
    slot = np.broadcast_to(rng.integers(spec.num_agents, size=batch), (steps, *batch)).astype(np.int32)
    return Percept(obs, avail, last_action, slot)


def write(path, arrays, form="zip"):
    """A file of weights, as PyTorch writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(FORMATS[form](*state_dictionary(arrays, shared=False)))
    return path


KINDS = {
    "rnn": Kind("rnn"),
    "rnn_norm": Kind("rnn_norm"),
    "rnn_poam": Kind("rnn_poam"),
    "rnn_ns": Kind("rnn_ns", seat=False),
    "rnn_norm_ns": Kind("rnn_norm_ns", seat=False),
    "observation only": Kind("rnn", last_action=False, seat=False),
    "no last action": Kind("rnn", last_action=False),
    "no recurrence": Kind("rnn", recurrent=False, hidden=9),
    "no recurrence, norms": Kind("rnn_norm", recurrent=False, input_norm=False),
    "no recurrence, seats": Kind("rnn_ns", recurrent=False),
    "no norm": Kind("rnn_norm", input_norm=False),
    "two layers": Kind("rnn_poam", layers=2, input_norm=False),
    "old encoder": Kind("rnn_poam", encoder="fc1", seat=False),
}


def imported(path, env=ENV, checkpoint=None, **choices):
    return import_agent(find_checkpoint(path, checkpoint), env, Choices(**choices))
