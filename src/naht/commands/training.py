"""naht train, naht resume, naht log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, cast

import tyro
from rich.table import Table

from naht.agents.saved import load_agent
from naht.clusters.choice import Elsewhere, devices_of, hired
from naht.commands.parsing import leading_names, parse, said_return, take_flag
from naht.envs.smac.starcraft import StarCraft, in_starcraft
from naht.errors import NahtError, unknown
from naht.storage import check_output, saved
from naht.tasks import Preset, make_env
from naht.terminal import terminal
from naht.training.config import AlgorithmT, RunConfig, TaskT, run_config
from naht.training.crew import Crew
from naht.training.folder import is_run, read_config, run_folder
from naht.training.loggers import LoggerName, check_loggers, forward, write_marl_eval
from naht.training.parallel import Job, run_all
from naht.training.progress import Display

TRAIN_HELP = """usage: naht train TASK ALGORITHM [--preset PRESET] [--seeds K] [OPTIONS]

Train a team that cooperates with strangers, for example:

  naht train bit-game poam                       one run, tuned settings, into runs/bit-game/poam/seed0
  naht train bit-game poam --seeds 5             seeds 0 to 4, spread over the cores
  naht train bit-game poam --seeds 5 --on ray    the same, spread over the machines of a Ray cluster
  naht train bit-game poam --preset paper        the paper's hyper-parameters
  naht train bit-game ippo-naht --algorithm.lr 1e-3 --task.num-agents 5
  naht train bit-game poam --teams.num-controlled 1 --teams.teammates bernoulli turns runs/bit-game/poam/seed0
  naht train 5v6 mappo --world starcraft --algorithm.num-envs 8    in StarCraft II itself, for those who own it

A killed or stopped run goes on exactly where it was: naht resume RUN.
TASK and ALGORITHM are listed by `naht list tasks` and `naht list algorithms`; every setting of a pair, with its
default and meaning, by for instance `naht train bit-game poam --help`."""


@dataclass(frozen=True)
class Train(Generic[TaskT, AlgorithmT]):
    """Train a team that cooperates with strangers. --preset tuned|paper|released chooses the defaults below."""

    run: Annotated[RunConfig[TaskT, AlgorithmT], tyro.conf.arg(name="")]
    seeds: int = 1
    """Number of runs, with seeds --seed, --seed + 1, ..."""
    workers: int | None = None
    """Runs trained at the same time; None: one per core."""
    out: Path = Path("runs")
    """Folder of all runs."""
    name: str | None = None
    """Name of the run's folder; None: seed<SEED>. With --seeds, the seed is appended."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints. Does not influence the result."""
    log: tuple[LoggerName, ...] = ()
    """Where metrics go besides metrics.jsonl. Does not influence the result."""
    elsewhere: Annotated[Elsewhere, tyro.conf.arg(name="")] = Elsewhere()
    """Other machines."""


def train(args: Sequence[str]) -> None:
    (task_name, algorithm), rest = leading_names(args, ("TASK", "ALGORITHM"), TRAIN_HELP)
    preset, rest = take_flag(rest, "--preset", "tuned")
    world, rest = take_flag(rest, "--world", "simulator")
    defaults = run_config(_world(task_name, world), algorithm, cast(Preset, preset))
    kind = cast(Any, Train)[type(defaults.task), type(defaults.algorithm)]  # the flags of this very pair
    chosen: Train = parse(kind, f"train {task_name} {algorithm}", rest, default=kind(run=defaults))
    if chosen.seeds < 1:
        raise NahtError(f"seeds is {chosen.seeds}: it must be at least 1")
    jobs = []
    for seed in range(chosen.run.seed, chosen.run.seed + chosen.seeds):
        name = chosen.name if chosen.name is None or chosen.seeds == 1 else f"{chosen.name}-seed{seed}"
        config = replace(chosen.run, seed=seed)
        jobs.append(Job(config, run_folder(chosen.out, config, name)))
    taken = [job.folder for job in jobs if is_run(job.folder)]
    if taken:
        raise NahtError(f"{taken[0]} holds a run already: naht resume {taken[0]}, or choose another --name or --out")
    with _hired(chosen, jobs) as crew, Display() as display:
        run_all(
            jobs,
            workers=chosen.workers,
            crew=crew,
            report=display.show,
            checkpoint_every=chosen.checkpoint_every,
            loggers=chosen.log,
        )
    print_finished([job.folder for job in jobs])


def _hired(chosen: Train | Resume, jobs: Sequence[Job]) -> AbstractContextManager[Crew | None]:
    """Whoever the flags say, to work where all of these runs are."""
    place = Path(os.path.commonpath([job.folder.absolute().parent for job in jobs]))
    return hired(chosen.elsewhere, place, devices=devices_of(jobs), workers=chosen.workers)


def _world(task_name: str, world: str) -> str | StarCraft:
    """A task by name, or the same map in the game itself."""
    if world == "simulator":
        return task_name
    if world != "starcraft":
        raise unknown("world", world, ("simulator", "starcraft"))
    return in_starcraft(make_env(task_name))


def print_finished(folders: Sequence[Path]) -> None:
    table = Table("run", "best agent", "last agent", box=None, header_style="bold")
    for folder in folders:
        agents = [load_agent(folder / f"{kind}.safetensors") for kind in ("best", "last")]
        table.add_row(str(folder), *map(said_return, agents))
    console = terminal()
    console.print(table)
    console.print("Returns in fresh episodes; ± is half the 95 % interval over episodes")
    console.print(f"Next: naht evaluate {folders[0]}", soft_wrap=True)


@dataclass(frozen=True)
class Resume:
    """Go on with runs that were killed or stopped, exactly where they were."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    workers: int | None = None
    """Runs trained at the same time; None: one per core."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints. Does not influence the result."""
    trust: bool = False
    """Run the teammates in Python that the runs' settings name: for runs of your own."""
    start_over: bool = False
    """Where all checkpoints are damaged, begin again at step 0."""
    log: tuple[LoggerName, ...] = ()
    """Where metrics go besides metrics.jsonl: each step once, whoever logged those before."""
    elsewhere: Annotated[Elsewhere, tyro.conf.arg(name="")] = Elsewhere()
    """Other machines."""


def resume(args: Sequence[str]) -> None:
    chosen = parse(Resume, "resume", args)
    if not chosen.runs:
        raise NahtError("RUN missing: usage: naht resume RUN [RUN ...]")
    jobs = [Job(read_config(folder), folder) for folder in chosen.runs]
    with _hired(chosen, jobs) as crew, Display() as display:
        run_all(
            jobs,
            workers=chosen.workers,
            crew=crew,
            report=display.show,
            checkpoint_every=chosen.checkpoint_every,
            trust=chosen.trust,
            start_over=chosen.start_over,
            loggers=chosen.log,
        )
    print_finished(chosen.runs)


@dataclass(frozen=True)
class Log:
    """Bring the metrics of runs to TensorBoard, W&B or marl-eval, each step once, however often this is called."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders of such."""
    to: Literal["tensorboard", "wandb", "marl-eval"]
    """tensorboard: event files in the runs' folders. wandb: a run there for each. marl-eval: one file for all."""
    out: Path = Path("marl_eval.json")
    """The file for marl-eval."""


def log(args: Sequence[str]) -> None:
    chosen = parse(Log, "log", args)
    if not chosen.runs:
        raise NahtError("RUN missing: usage: naht log RUN [RUN ...] --to tensorboard|wandb|marl-eval")
    folders: list[Path] = []
    for place in chosen.runs:
        found = [place] if is_run(place) else [path.parent for path in sorted(place.rglob("config.json"))]
        if not found:
            raise NahtError(f"there are no runs in {place}")
        folders += found
    if chosen.to == "marl-eval":
        check_output(chosen.out)
        print(saved(lambda path: write_marl_eval(path, folders), chosen.out))
        return
    check_loggers([chosen.to])
    for folder in folders:
        forward(chosen.to, folder)
        print(folder / chosen.to)
