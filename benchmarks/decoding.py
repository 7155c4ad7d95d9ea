"""How many teammates must a model decode? Learning over wall-clock, and what the model knows, by setting.

    python benchmarks/decoding.py --out runs/decoding

trains POAM on predator-prey and two maps with every setting below (resumable, one core per run), asks every model about
all teammates in fresh episodes, and prints a table.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from naht.runtime import configure

configure()

import numpy as np  # noqa: E402

from naht.agents.saved import load_agent  # noqa: E402
from naht.evaluation.modelling import predict_teammates  # noqa: E402
from naht.evaluation.statistics import mean_interval  # noqa: E402
from naht.teams.population import Population, load_members  # noqa: E402
from naht.training.config import RunConfig, run_config  # noqa: E402
from naht.training.folder import read_config, read_metrics  # noqa: E402
from naht.training.parallel import Job, run_all  # noqa: E402
from naht.training.progress import Display  # noqa: E402

TASKS = {"mpe-pp": 2_000_000, "5v6": 500_000, "10v11": 500_000}
"""Steps of each run."""
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {"decoded_teammates": "all"},
    "2": {"decoded_teammates": 2},
    "1": {"decoded_teammates": 1},
    "1, one pass": {"decoded_teammates": 1, "model_epochs": 1},
}


def configured(task: str, changes: dict[str, Any], seed: int) -> RunConfig:
    config = run_config(task, "poam", seed=seed)
    return replace(config, algorithm=replace(config.algorithm, **changes), steps=TASKS[task], test_every=64_000, devices=1)


def jobs(out: Path, tasks: list[str], settings: list[str], seeds: int) -> dict[tuple[str, str, int], Job]:
    # Settings take turns, so that a busy machine treats them alike.
    return {
        (task, name, seed): Job(
            configured(task, SETTINGS[name], seed), out / task / name.replace(", ", "-") / f"seed{seed}"
        )
        for task in tasks
        for seed in range(seeds)
        for name in settings
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/decoding"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    wanted = jobs(chosen.out, chosen.tasks, chosen.settings, chosen.seeds)
    with Display() as display:
        run_all(list(wanted.values()), report=display.show, same_command=True)
    names = ("task", "decoded", "return", "mean test return", "observation error", "action probability", "minutes")
    print(f"| {' | '.join(names)} |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for task in chosen.tasks:
        for name in chosen.settings:
            rows = np.array([measured(wanted[task, name, seed].folder) for seed in range(chosen.seeds)])
            cells = [f"{mean_interval(column.tolist()):.3f}" for column in rows.T[:-1]]
            print(f"| {task} | {name} | {' | '.join(cells)} | {np.median(rows[:, -1]):.1f} |")


def measured(folder: Path) -> tuple[float, ...]:
    """(return of the best agent, mean test return, observation error, action probability, minutes) of a run."""
    agent, config = load_agent(folder), read_config(folder)
    rows = read_metrics(folder)
    tests = [row["test/return"] for row in rows if "test/return" in row]
    last = load_agent(folder / "last.safetensors")
    strangers = Population(load_members(config.teams.teammates, config.task.spec))
    error, probability = predict_teammates(config.task, last, strangers, episodes=512, seed=1).means()
    return (
        agent.fact("measured")["return"],
        float(np.mean(tests)),
        float(error),
        float(probability),
        rows[-1]["seconds"] / 60,
    )


if __name__ == "__main__":
    main()
