"""How many teammates must a model decode? Learning over wall-clock, and what the model knows, by setting.

    python benchmarks/decoding.py --out runs/decoding

trains POAM on predator-prey and two maps with every setting below (resumable, one core per run), asks every model about
all teammates in fresh episodes, and prints a table and draws learning over wall-clock. Runs may have gone on beside
other work, so minutes are steps by the speed of each setting, measured at the end with all settings taking turns.
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
from naht.report.figures import Curve, learning_curves  # noqa: E402
from naht.teams.population import Population, load_members  # noqa: E402
from naht.training.config import RunConfig, run_config  # noqa: E402
from naht.training.folder import is_run, read_config, read_metrics  # noqa: E402
from naht.training.parallel import Job, run_all  # noqa: E402
from naht.training.progress import Display  # noqa: E402
from naht.training.trainer import settled  # noqa: E402
from versions import Version  # noqa: E402

TASKS = {"mpe-pp": 2_000_000, "5v6": 500_000, "10v11": 500_000}
"""Steps of each run."""
SETTINGS: dict[str, dict[str, Any]] = {
    # The rate is named in each: the tuned settings differ in it between tasks.
    "all": {"decoded_teammates": "all", "model_lr": 1e-3},
    "1": {"decoded_teammates": 1, "model_lr": 1e-3},
    "1, twice the rate": {"decoded_teammates": 1, "model_lr": 2e-3},
    "2": {"decoded_teammates": 2, "model_lr": 1e-3},
    "1, one pass": {"decoded_teammates": 1, "model_epochs": 1, "model_lr": 1e-3},
}


def configured(task: str, changes: dict[str, Any], seed: int) -> RunConfig:
    config = run_config(task, "poam", seed=seed)
    return replace(
        config, algorithm=replace(config.algorithm, **changes), steps=TASKS[task], test_every=64_000, devices=1
    )


def jobs(out: Path, tasks: list[str], settings: list[str], seeds: int) -> dict[tuple[str, str, int], Job]:
    # Settings take turns, so that a busy machine treats them alike.
    folders = {name: name.replace(",", "").replace(" ", "-") for name in settings}
    return {
        (task, name, seed): job(configured(task, SETTINGS[name], seed), out / task / folders[name] / f"seed{seed}")
        for task in tasks
        for seed in range(seeds)
        for name in settings
    }


def job(config: RunConfig, folder: Path) -> Job:
    """A run that was computed in other pieces is the same run up to rounding."""
    config = settled(config)
    found = read_config(folder) if is_run(folder) else config
    return Job(found if replace(found, pieces=config.pieces) == config else config, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/decoding"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=9, help="of measuring the speed")
    chosen = parser.parse_args()
    wanted = jobs(chosen.out, chosen.tasks, chosen.settings, chosen.seeds)
    with Display() as display:
        run_all(list(wanted.values()), report=display.show, same_command=True)
    columns = (
        "task",
        "decoded",
        "speed",
        "return",
        "return halfway through",
        "observation error",
        "action probability",
    )
    print(f"| {' | '.join(columns)} |\n|---|---|" + "---:|" * (len(columns) - 2))
    panels: dict[str, dict[str, list[Curve]]] = {}
    for task in chosen.tasks:
        speeds = measured_speeds(task, chosen.settings, chosen.turns)
        panels[task] = {}
        # Halfway through the time that decoding everything takes.
        halfway = TASKS[task] / speeds[chosen.settings[0]] / 120
        for name in chosen.settings:
            folders = [wanted[task, name, seed].folder for seed in range(chosen.seeds)]
            curves = panels[task][name] = [tests_over_minutes(folder, speeds[name]) for folder in folders]
            by_then = [float(np.interp(halfway, *zip(*curve, strict=True))) for curve in curves]
            facts = np.array([(agent_return(f), then, *knowledge(f)) for f, then in zip(folders, by_then, strict=True)])
            cells = " | ".join(f"{mean_interval(column.tolist()):.3f}" for column in facts.T)
            print(f"| {task} | {name} | {speeds[name] / speeds[chosen.settings[0]]:.2f} | {cells} |", flush=True)
    file = chosen.out / "over_time.png"
    learning_curves(file, panels, x_label="minutes on one core", y_label="greedy test return")
    print(f"Figure: {file}")


def measured_speeds(task: str, settings: list[str], turns: int) -> dict[str, float]:
    """Environment steps per second on one core, the median of all turns."""
    root = Path(__file__).parent.parent
    versions = {name: Version(root, [task, "poam", "tuned", 1, SETTINGS[name], 2]) for name in settings}
    rates = [[version.take_turn() for version in versions.values()] for _ in range(turns)]
    for version in versions.values():
        version.stop()
    return dict(zip(versions, np.median(rates, axis=0).tolist(), strict=True))


def tests_over_minutes(folder: Path, speed: float) -> Curve:
    rows = [row for row in read_metrics(folder) if "test/return" in row]
    return [(row["step"] / speed / 60, row["test/return"]) for row in rows]


def agent_return(folder: Path) -> float:
    """Of the last agent, in fresh episodes."""
    return load_agent(folder / "last.safetensors").fact("measured")["return"]


def knowledge(folder: Path) -> tuple[float, float]:
    """(squared error of observations, probability of actions) of the last agent's model about all teammates."""
    config, agent = read_config(folder), load_agent(folder / "last.safetensors")
    strangers = Population(load_members(config.teams.teammates, config.task.spec))
    error, probability = predict_teammates(config.task, agent, strangers, episodes=512, seed=1).means()
    return float(error), float(probability)


if __name__ == "__main__":
    main()
