"""What a setting is worth: the same method with different settings, on seeds that no study uses.

    python benchmarks/tuning.py mpe-pp ippo-naht poam --set imitation=0.1 --set imitation=0.3,imitation_limit=2

trains every method with every change to the tuned settings (resumable, one core per run) and prints returns of the last
agents in fresh episodes with the teams of training, and of the tests halfway.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from naht.runtime import configure

configure()

import numpy as np  # noqa: E402

from naht.agents.saved import load_agent  # noqa: E402
from naht.training.config import run_config  # noqa: E402
from naht.training.folder import read_metrics  # noqa: E402
from naht.training.parallel import Job, run_all  # noqa: E402
from naht.training.progress import Display  # noqa: E402


def changes(text: str) -> dict[str, Any]:
    """'a=1,b=two' -> {"a": 1, "b": "two"}; nothing: no change."""

    def value(word: str) -> Any:
        try:
            return json.loads(word)
        except ValueError:
            return word

    pairs = [part.split("=", 1) for part in text.split(",") if part]
    return {name: value(word) for name, word in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--set", action="append", default=[], dest="settings", help="name=value,... to compare")
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11])
    parser.add_argument("--out", type=Path, default=Path("runs/tuning"))
    chosen = parser.parse_args()
    jobs: dict[tuple[str, str, int], Job] = {}
    for seed in chosen.seeds:
        for method in chosen.methods:
            for text in chosen.settings or [""]:
                config = run_config(chosen.task, method, seed=seed)
                config = replace(config, algorithm=replace(config.algorithm, **changes(text)), steps=chosen.steps)
                folder = chosen.out / chosen.task / method / (text or "tuned") / f"seed{seed}"
                jobs[method, text, seed] = Job(replace(config, devices=1), folder)
    with Display() as display:
        run_all(list(jobs.values()), report=display.show, same_command=True)
    print("| method | changed | return | halfway |\n|---|---|---|---|")
    for method in chosen.methods:
        for text in chosen.settings or [""]:
            folders = [jobs[method, text, seed].folder for seed in chosen.seeds]
            ends = [load_agent(folder / "last.safetensors").fact("measured")["return"] for folder in folders]
            tests = [[row["test/return"] for row in read_metrics(folder) if "test/return" in row] for folder in folders]
            middle = [test[len(test) // 2] for test in tests]
            cells = [f"{np.mean(x):.1f} ({', '.join(f'{v:.1f}' for v in x)})" for x in (ends, middle)]
            print(f"| {method} | {text or 'nothing'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
