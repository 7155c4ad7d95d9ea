"""Run an exported agent step by step, without naht: with PyTorch (.pt) or with ONNX Runtime (.onnx).

naht export-agent zoo/mpe-pp/vdn-seed3 --format torch --out vdn.pt
python examples/run_exported.py vdn.pt

Both kinds of agents have `memory_sizes` and `step`; copy the one that you need. Beside an exported agent lies a
recording of what it saw and did in naht, vdn.episodes.npz: here it sees the same again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np


class TorchAgent:
    """A list of layers and their weights. A step is: go through the list."""

    def __init__(self, path: Path):
        import torch

        self.torch, stored = torch, torch.load(path, weights_only=True)
        self.network, self.weights = stored["network"], stored["weights"]
        self.memory_sizes = {name: memory["width"] for name, memory in self.network["memory"].items()}

    def step(self, obs, avail, last_action, seat, memory) -> tuple[Any, Any, dict[str, Any]]:
        """For B seats: obs [B, O] float32, avail [B, A] bool (allowed actions), last_action [B] (-1 at the start of an
        episode), seat [B], memory by name [B, H] (zeros at the start).

        Returns (actions [B], scores [B, A], memory for the next step).
        """
        torch, widths = self.torch, self.network["inputs"]

        def one_hot(index: np.ndarray, width: int) -> Any:
            return (torch.as_tensor(index)[:, None] == torch.arange(width)).float()  # zeros for -1

        values = {name: torch.as_tensor(x) for name, x in {"obs": obs, **memory}.items()}
        values["last_action"] = one_hot(last_action, widths["last_action"])
        values["seat"] = one_hot(seat, widths["seat"])
        for layer in self.network["layers"]:
            values[layer["gives"]] = self.compute(layer, *[values[name] for name in layer["reads"]])
        scores = values[self.network["scores"]]
        action = scores.masked_fill(~torch.as_tensor(avail), -1e30).argmax(-1)
        return action, scores, {name: values[m["becomes"]] for name, m in self.network["memory"].items()}

    def compute(self, layer: dict[str, Any], *xs: Any) -> Any:
        torch, kind = self.torch, layer["kind"]

        def weights(*parts: str) -> list[Any]:
            return [self.weights[f"{layer['weights']}.{part}"] for part in parts]

        if kind == "join":
            return torch.cat(xs, -1)
        if kind == "linear":
            return torch.nn.functional.linear(*xs, *weights("weight", "bias"))
        if kind == "relu":
            return torch.relu(*xs)
        if kind == "norm":
            own = weights("weight", "bias") if layer["weights"] else [None, None]
            return torch.nn.functional.layer_norm(*xs, [layer["width"]], *own, eps=layer["epsilon"])
        if kind == "gru":
            return torch.gru_cell(*xs, *weights("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        if kind == "choose":  # one of several, by a one-hot
            return (torch.stack(xs[1:], -2) * xs[0][..., None]).sum(-2)
        raise ValueError(f"unknown kind of layer: {kind}")


class OnnxAgent:
    """A model of one step."""

    def __init__(self, path: Path):
        import onnxruntime

        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        seen = ("obs", "avail", "last_action", "seat")
        self.memory_sizes = {x.name: x.shape[1] for x in self.session.get_inputs() if x.name not in seen}

    def step(self, obs, avail, last_action, seat, memory) -> tuple[Any, Any, dict[str, Any]]:
        """As above."""
        numbers = {"last_action": np.asarray(last_action, np.int64), "seat": np.asarray(seat, np.int64)}
        action, scores, *new = self.session.run(None, {"obs": obs, "avail": avail, **numbers, **memory})
        return action, scores, dict(zip(self.memory_sizes, new, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agent", type=Path, help="an exported agent: .pt or .onnx")
    path = parser.parse_args().agent
    agent = OnnxAgent(path) if path.suffix == ".onnx" else TorchAgent(path)
    recorded = dict(np.load(path.with_name(path.stem + ".episodes.npz")))
    steps, worlds, seats = recorded["action"].shape
    rows = worlds * seats  # every seat of every world acts for itself
    seat = np.tile(np.arange(seats), worlds)
    memory = {name: np.zeros((rows, width), np.float32) for name, width in agent.memory_sizes.items()}
    other, difference = 0, 0.0
    for t in range(steps):
        going_on = np.repeat(~recorded["first"][t], seats)[:, None].astype(np.float32)
        memory = {name: np.asarray(value) * going_on for name, value in memory.items()}
        obs, avail, last_action = (
            recorded[name][t].reshape(rows, *recorded[name].shape[3:]) for name in ("obs", "avail", "last_action")
        )
        action, scores, memory = agent.step(obs, avail, last_action, seat, memory)
        other += int((np.asarray(action) != recorded["action"][t].reshape(rows)).sum())
        difference = max(difference, float(np.abs(np.asarray(scores) - recorded["scores"][t].reshape(rows, -1)).max()))
    print(f"{path.name}: {other} of {steps * rows} actions differ from naht's, scores by at most {difference:.1e}")


if __name__ == "__main__":
    main()
