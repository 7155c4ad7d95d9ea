"""Whole training of two versions of this package, taking turns in one run.

    git worktree add /tmp/before v0.8
    python benchmarks/versions.py /tmp/before . --tasks mpe-pp 5v6 10v11

Each version trains in a process of its own, with five untrained teams as teammates; while one takes its turn, the other
waits. Neighbours on the machine slow both alike, so the median of the turns' ratios says more than either speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np


def serve(task: str, algorithm: str, preset: str, devices: int, changes: dict[str, Any], updates: int) -> None:
    """A version's process: for every line that comes in, train some updates and say how fast. Uses only what all
    versions have."""
    from naht.runtime import configure

    configure()
    import jax

    from naht import Member, Population, run_config, team_sampler
    from naht.agents.recurrent import RecurrentPolicy
    from naht.devices import SHARED, place
    from naht.learning import learner as learners
    from naht.training.trainer import Trainer

    config: Any = run_config(task, algorithm, preset)  # type: ignore[arg-type]
    spec, policy = config.task.spec, RecurrentPolicy(config.task.spec)
    crowd = Population([Member(f"team{i}", policy, policy.init(jax.random.key(i))) for i in range(5)])
    sampler = team_sampler(spec.num_agents, 5, config.teams.num_controlled)
    algorithm = replace(config.algorithm, **changes)
    hints: dict[str, Any] = {"share": sampler.controlled_share}
    if hasattr(algorithm, "learner"):
        learner = algorithm.learner(spec, learners.Circumstances(devices, **hints))
    else:  # of versions before settings made their learner
        learner = getattr(learners, "make_learner")(spec, algorithm, devices, **hints)  # noqa: B009
    trainer = Trainer(config.task, learner, sampler, crowd.roster, 1000, 512, devices)
    theirs, state = place(crowd.params, devices, SHARED), trainer.init(jax.random.key(0))
    state, _ = jax.block_until_ready(trainer.step(state, theirs))
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(updates):
            state, _ = trainer.step(state, theirs)
        jax.block_until_ready(state)
        print(updates * learner.num_envs * learner.rollout_steps / (time.perf_counter() - began), flush=True)


class Version:
    """A process that trains when asked to."""

    def __init__(self, root: Path, arguments: list[Any]) -> None:
        environment = os.environ | {"PYTHONPATH": str(root / "src")}
        command = [sys.executable, __file__, "--serve", json.dumps(arguments)]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def take_turn(self) -> float:
        """Environment steps per second of one turn."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self._answer())

    def stop(self) -> None:
        self.process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", type=Path, nargs="*", help="checkouts of the project: before, and after")
    parser.add_argument("--tasks", nargs="+", default=["mpe-pp", "5v6", "10v11"])
    parser.add_argument("--algorithm", default="poam")
    parser.add_argument("--preset", default="tuned")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--updates", type=int, default=3, help="in a turn")
    parser.add_argument("--changes", nargs="*", type=json.loads, default=[], help="settings of each version's learner")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        return serve(*chosen.serve)
    changes = chosen.changes or [{} for _ in chosen.roots]
    print("| task | version | env steps/s: best | median | ratio to the first: median | quartiles |")
    print("|---|---|---:|---:|---:|---:|")
    for task in chosen.tasks:
        versions = [
            Version(root, [task, chosen.algorithm, chosen.preset, chosen.devices, change, chosen.updates])
            for root, change in zip(chosen.roots, changes, strict=True)
        ]
        rates = np.array([[version.take_turn() for version in versions] for _ in range(chosen.turns)])
        for version in versions:
            version.stop()
        ratios = rates / rates[:, :1]
        for i, root in enumerate(chosen.roots):
            name = f"{root} {json.dumps(changes[i])}" if changes[i] else str(root)
            low, middle, high = np.percentile(ratios[:, i], [25, 50, 75])
            speeds = f"{rates[:, i].max():,.0f} | {np.median(rates[:, i]):,.0f}"
            print(f"| {task} | {name} | {speeds} | {middle:.2f} | {low:.2f} to {high:.2f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
