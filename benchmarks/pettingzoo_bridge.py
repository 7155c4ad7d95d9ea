"""Environment steps per second of a PettingZoo environment: in its own loop, in our worlds, in whole training; and of a
task of ours seen through PettingZoo.

    pip install 'naht[pettingzoo]' mpe2
    python benchmarks/pettingzoo_bridge.py

mpe2's spread with three agents and 25 steps. Everybody acts at random but in the training, which is IPPO with general
settings. What is compared takes turns in one run; the best of several repetitions counts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # mpe2 brings pygame, which says hello

from naht.runtime import configure

configure()

import numpy as np  # noqa: E402 (after configure)
from mpe2 import simple_spread_v3  # noqa: E402

import naht  # noqa: E402
from naht.envs.host import HostWorlds  # noqa: E402
from naht.training.folder import read_metrics  # noqa: E402

AGENTS, ACTIONS, WORLDS = 3, 5, 64


def own_loop(env: Any, steps: int) -> Callable[[], int]:
    """One environment, as its documentation steps it; some are ours. Returns the number of steps."""
    rng = np.random.default_rng(0)

    def play() -> int:
        env.reset(seed=0)
        for _ in range(steps):
            env.step({agent: int(rng.integers(ACTIONS)) for agent in env.agents})
            if not env.agents:
                env.reset()
        return steps

    return play


def our_worlds(task: Any, processes: int, steps: int) -> Callable[[], int]:
    """A batch of worlds in so many processes; all episodes are equally long, so all end at once."""
    worlds, rng = HostWorlds(task, WORLDS, processes), np.random.default_rng(0)
    everywhere = np.ones(WORLDS, bool)

    def play() -> int:
        for begun in range(0, steps, 25):
            worlds.reset(everywhere, np.arange(WORLDS) + begun)
            for _ in range(25):
                worlds.step(rng.integers(0, ACTIONS, (WORLDS, AGENTS)))
        return WORLDS * steps

    return play


def training(task: Any, steps: int) -> float:
    """Steps per second of whole training: worlds, policies, updates; compiling not counted."""
    config = replace(naht.run_config(task, "ippo"), steps=steps)
    with tempfile.TemporaryDirectory() as folder:
        naht.train(config, Path(folder) / "run")
        speeds = [row["steps_per_second"] for row in read_metrics(Path(folder) / "run") if "steps_per_second" in row]
    return float(speeds[-1])  # a mean over all updates but the first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--training-steps", type=int, default=200_000)
    chosen = parser.parse_args()
    task = naht.from_pettingzoo(
        "mpe2.simple_spread_v3:parallel_env", name="spread", team_reward="mean", N=AGENTS, max_cycles=25
    )
    ours = {
        "one mpe2 environment in its own loop": own_loop(simple_spread_v3.parallel_env(N=AGENTS, max_cycles=25), 2000),
        "64 worlds of ours, one process": our_worlds(task, 1, 100),
        "64 worlds of ours, two processes": our_worlds(task, 2, 100),
        "mpe-pp through PettingZoo, all seats ours": own_loop(naht.to_pettingzoo("mpe-pp"), 500),
        "mpe-pp through PettingZoo, strangers inside": own_loop(
            naht.to_pettingzoo("mpe-pp", teammates=("zoo/seed0",), num_controlled=1), 500
        ),
    }
    best = dict.fromkeys(ours, 0.0)
    for repetition in range(chosen.repetitions + 1):
        for name, play in ours.items():
            began = time.perf_counter()
            count = play()
            if repetition:  # the first one compiles
                best[name] = max(best[name], count / (time.perf_counter() - began))
    best["training of IPPO on mpe2's spread"] = training(task, chosen.training_steps)
    print("| what | environment steps/s |\n|---|---:|")
    for name, speed in best.items():
        print(f"| {name} | {speed:,.0f} |")


if __name__ == "__main__":
    main()
