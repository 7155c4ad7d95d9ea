"""How soon POAM reaches a return on predator-prey, over steps and over wall-clock: our settings and the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from naht.envs.prey import SHIPPED
from naht.errors import require
from naht.report.curves import GreedyTests, plot_tests, read_tests
from naht.storage import write_file
from naht.terminal import terminal
from naht.training.config import Preset, RunConfig, run_config
from naht.training.folder import run_folder
from naht.training.parallel import Job, run_all
from naht.training.progress import Display

TEAMMATES = (("ippo", 0), ("ippo", 1), ("ippo", 2), ("mappo", 0), ("mappo", 1))
"""Algorithm and seed of the teams that lend teammates."""


@dataclass(frozen=True)
class TimeToReturnStudy:
    """Train methods on predator-prey with different presets and show when each passes a return.

    A stopped or killed study goes on with the same command; finished runs are kept.
    """

    algorithms: tuple[str, ...] = ("poam",)
    """Methods."""
    presets: tuple[Preset, ...] = ("tuned", "paper")
    """Settings to compare."""
    seeds: int = 3
    """Runs per method and preset."""
    steps: int = 3_000_000
    """Environment steps of each run."""
    target: float = 14.0
    """The return to pass (the paper's POAM is there after 20 million steps)."""
    teammates: tuple[str, ...] = ()
    """Saved agents as teammates; default: three IPPO and two MAPPO teams, which are trained first."""
    teammate_steps: int = 3_000_000
    """Environment steps of each of these teams."""
    prey: str = SHIPPED
    """Who flees: 'naht' or a file."""
    out: Path = Path("runs/time-to-return")
    """Folder for runs and results."""


def time_to_return(study: TimeToReturnStudy, console: Console | None = None) -> None:
    """Train what is missing; write figure and table; print the table."""
    console = console or terminal()
    require(study.seeds >= 1, f"seeds is {study.seeds}: it must be at least 1")
    teammates = study.teammates or _train_teammates(study)
    groups: dict[str, list[Job]] = {}
    for algorithm in study.algorithms:
        for preset in study.presets:
            configs = [run_config("mpe-pp", algorithm, preset, seed=s, prey=study.prey) for s in range(study.seeds)]
            groups[f"{algorithm}, {preset}"] = [_job(study, c, teammates, study.out / preset) for c in configs]
    _finish([job for jobs in groups.values() for job in jobs])
    tests = {name: [read_tests(job.folder) for job in jobs] for name, jobs in groups.items()}
    title = f"Predator-prey, {study.seeds} seeds"
    plot_tests(study.out, {title: tests}, {title: {f"return {study.target:g}": study.target}})
    rows = [_row(study, name, trial, curve) for name, curves in tests.items() for trial, curve in enumerate(curves)]
    header = ("method", "seed", "steps to target", "seconds to target", "return at the end")
    table = Table(*header, title=f"Return {study.target:g} on predator-prey", header_style="bold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    lines = [",".join(header), *[",".join(f'"{cell}"' if "," in cell else cell for cell in row) for row in rows]]
    write_file(study.out / "time_to_return.csv", ("\n".join(lines) + "\n").encode())
    console.print(f"Figure and table: {study.out}", soft_wrap=True)


def _train_teammates(study: TimeToReturnStudy) -> tuple[str, ...]:
    jobs = []
    for algorithm, seed in TEAMMATES:
        config = run_config("mpe-pp", algorithm, seed=seed, prey=study.prey)
        config = replace(config, steps=study.teammate_steps)
        jobs.append(Job(config, run_folder(study.out / "teammates", config)))
    _finish(jobs)
    return tuple(str(job.folder / "last.safetensors") for job in jobs)


def _job(study: TimeToReturnStudy, config: RunConfig, teammates: Sequence[str], root: Path) -> Job:
    config = replace(config, steps=study.steps, test_every=128_000)
    config = replace(config, teams=replace(config.teams, teammates=tuple(teammates)))
    return Job(config, run_folder(root, config))


def _finish(jobs: Sequence[Job]) -> None:
    with Display() as display:
        run_all(jobs, report=display.show, same_command=True)


def _row(study: TimeToReturnStudy, name: str, trial: int, tests: GreedyTests) -> tuple[str, ...]:
    passed = tests.first_above(study.target)
    when = [f"{number:.0f}" for number in passed] if passed else ["-", "-"]
    return (name, str(trial), *when, f"{tests.returns[-1]:.2f}")
