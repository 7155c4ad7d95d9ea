"""The paper's bit game table: POAM, IPPO-NAHT and POAM-AHT at N = 1 and N = 2."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from naht.agents.saved import load_agent
from naht.errors import require
from naht.evaluation.play import EpisodeRow, evaluate_mn
from naht.evaluation.statistics import Interval, bootstrap_iqm, group_means, mean_interval
from naht.evaluation.tables import write_rows
from naht.report.figures import learning_curves
from naht.storage import write_file
from naht.teams.population import Member, Population, load_members
from naht.terminal import terminal
from naht.training.config import Preset, run_config
from naht.training.folder import read_metrics, run_folder
from naht.training.parallel import Job, run_all
from naht.training.progress import Display

PAPER = {
    ("poam", 1): "33.483 ± 0.485",
    ("poam", 2): "48.858 ± 1.092",
    ("poam-aht", 1): "33.441 ± 0.511",
    ("poam-aht", 2): "22.500 ± 8.250",
}
"""Published means and 95 % intervals over 5 seeds."""

LEVELS = {1: {"4/9: whatever it does": 75 * 4 / 9}, 2: {"2/3: two that know each other": 75 * 2 / 3}}
"""Closed forms for M = 3 and 25 steps, by N: chance of a win in every step, times 75."""


@dataclass(frozen=True)
class BitGameStudy:
    """Train POAM, IPPO-NAHT and POAM-AHT on the bit game and compare them with the paper's table.

    A stopped or killed study goes on with the same command; finished runs are kept.
    """

    seeds: int = 10
    """Runs per algorithm."""
    first_seed: int = 0
    """Seed of the first run."""
    steps: int = 100_000
    """Environment steps of each run."""
    preset: Preset = "tuned"
    """Learner settings: tuned, paper (the published ones) or released (as the authors' code trained)."""
    algorithms: tuple[str, ...] = ("poam", "ippo-naht", "poam-aht")
    """Methods to compare."""
    episodes: int = 1024
    """Evaluation episodes per run and N."""
    workers: int | None = None
    """Runs trained at the same time; None: one per core."""
    out: Path = Path("runs/reproduce-bit-game")
    """Folder for runs and results."""


@dataclass(frozen=True)
class Result:
    """One cell of the table."""

    algorithm: str
    num_controlled: int
    returns: tuple[float, ...]
    """Mean return of each seed."""

    @property
    def mean(self) -> Interval:
        return mean_interval(self.returns)


def reproduce(study: BitGameStudy, console: Console | None = None) -> list[Result]:
    """Train what is missing, evaluate every run's last agent, write table and figure, print the table."""
    console = console or terminal()
    require(study.seeds >= 1, f"seeds is {study.seeds}: it must be at least 1")
    jobs = {name: _jobs(study, name) for name in study.algorithms}
    every = [job for group in jobs.values() for job in group]
    with Display() as display:
        run_all(every, workers=study.workers, report=display.show, same_command=True)
    folder = study.out / study.preset
    results: list[Result] = []
    rows: list[EpisodeRow] = []
    for name, group in jobs.items():
        played = [row for job in group for row in _evaluate(job, study.episodes)]
        rows += played
        means = group_means(played, lambda r: (r.num_controlled, r.trial), lambda r: r.episode_return)
        results += [Result(name, n, tuple(means[n, str(job.folder)] for job in group)) for n in (1, 2)]
    write_rows(folder / "episodes.csv", rows)
    _write_results(folder, study, results)
    _plot(folder / "learning_curves.png", jobs)
    console.print(_table(study, results))
    console.print("± is half the 95 % Student-t interval over seeds.")
    console.print("Best possible: 33.333 (N=1); 49.5 (N=2), or 50 if the two knew each other.")
    console.print(f"Figure, table and episodes: {folder}", soft_wrap=True)
    return results


def _jobs(study: BitGameStudy, algorithm: str) -> list[Job]:
    jobs = []
    for seed in range(study.first_seed, study.first_seed + study.seeds):
        config = run_config("bit-game", algorithm, study.preset, seed=seed)
        config = replace(config, steps=study.steps, test_every=max(1, study.steps // 25), test_episodes=256)
        jobs.append(Job(config, run_folder(study.out / study.preset, config)))
    return jobs


def _evaluate(job: Job, episodes: int) -> list[EpisodeRow]:
    agent = load_agent(job.folder / "last.safetensors")
    env = job.config.task
    return evaluate_mn(
        env,
        Population([Member(agent.name, agent.policy, agent.params)]),
        Population(load_members(job.config.teams.teammates, env.spec)),
        episodes=episodes,
        # Not the training seed: the evaluation draws its own teams and slots.
        seed=1_000_000 + job.config.seed,
        trial=str(job.folder),
    )


def _table(study: BitGameStudy, results: Sequence[Result]) -> Table:
    title = f"Bit game, {study.seeds} seeds x {study.steps:,} steps, preset {study.preset}"
    table = Table("", "N", "return", "IQM", "worst seed", "paper", title=title, header_style="bold")
    for r in results:
        iqm, paper = bootstrap_iqm(r.returns), PAPER.get((r.algorithm, r.num_controlled), "-")
        n = str(r.num_controlled)
        table.add_row(r.algorithm, n, str(r.mean), f"{iqm.mean:.3f}", f"{min(r.returns):.3f}", paper)
    return table


def _write_results(folder: Path, study: BitGameStudy, results: Sequence[Result]) -> None:
    def as_json(r: Result) -> dict[str, object]:
        return {
            "algorithm": r.algorithm,
            "num_controlled": r.num_controlled,
            "returns": r.returns,
            "mean": asdict(r.mean),
            "interval": "95 % Student-t over seeds",
            "iqm": asdict(bootstrap_iqm(r.returns)),
            "iqm_interval": "95 % percentile bootstrap over seeds",
            "paper": PAPER.get((r.algorithm, r.num_controlled)),
        }

    settings = asdict(study) | {"out": str(study.out)}
    text = json.dumps({"study": settings, "results": [as_json(r) for r in results]}, indent=2)
    write_file(folder / "results.json", (text + "\n").encode())
    lines = ["algorithm,num_controlled,seed,return"]
    for r in results:
        seeds = range(study.first_seed, study.first_seed + len(r.returns))
        lines += [f"{r.algorithm},{r.num_controlled},{s},{x}" for s, x in zip(seeds, r.returns, strict=True)]
    write_file(folder / "results.csv", ("\n".join(lines) + "\n").encode())


def _plot(path: Path, jobs: dict[str, list[Job]]) -> None:
    panels: dict[str, dict[str, list[list[tuple[float, float]]]]] = {}
    for name, group in jobs.items():
        for job in group:
            metrics = read_metrics(job.folder)
            for n in (1, 2):
                points = [(r["step"] / 1000, r[f"test/return_n{n}"]) for r in metrics if f"test/return_n{n}" in r]
                if points:
                    panels.setdefault(f"N = {n}", {}).setdefault(name, []).append(points)
    lines = {f"N = {n}": levels for n, levels in LEVELS.items()}
    learning_curves(path, panels, x_label="thousand environment steps", y_label="greedy test return", lines=lines)
