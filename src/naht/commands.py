"""What each `naht` command does: a dataclass of flags, and a function that calls the Python API."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast

import tyro
from rich.console import Console
from rich.table import Table

from naht.agents.saved import load_agent
from naht.agents.scripted import BOTS
from naht.config import decode
from naht.doctor import examine
from naht.envs.registry import TASKS
from naht.errors import NahtError, unknown
from naht.evaluation.play import evaluate_mn
from naht.evaluation.tables import summarise, write_rows
from naht.experiments.bit_game import BitGameStudy, reproduce
from naht.experiments.prey import PreyRecipe
from naht.experiments.prey import train_prey as make_prey
from naht.experiments.time_to_return import TimeToReturnStudy, time_to_return
from naht.report.replay import check_output, record, save_replay
from naht.teams.population import Member, Population, load_members, saved_member, told_apart
from naht.training.config import ALGORITHMS, Preset, RunConfig, TaskT, run_config
from naht.training.parallel import Job, run_all
from naht.training.progress import Display
from naht.training.run import is_run, read_config, run_folder

T = TypeVar("T")


def one_line(explanation: str) -> str:
    """Tyro explains a wrong call in sections between rules: a title, what is wrong, hints. This makes it one line."""
    sections: list[list[str]] = [[]]
    for line in (raw.strip() for raw in explanation.splitlines()):
        if line and not line.strip("-"):
            sections.append([])
        elif line:
            sections[-1].append(line)
    problem = " ".join(sections[1] if len(sections) > 1 else sections[0]).partition(" Got errors:")[0].rstrip(".")
    hints = [line for section in sections[2:] for line in section if line.startswith("--")]
    if not hints:
        return problem
    if "nrecognized" in problem:
        return f"{problem}: did you mean {' or '.join(hint.split()[0].rstrip(',') for hint in hints)}?"
    return f"{problem}; expected {hints[0]}"


def parse(cls: type[T], command: str, args: Sequence[str], *, default: T | None = None) -> T:
    """Fill a dataclass from flags. Wrong ones become a one-line `NahtError`; --help prints and leaves."""
    options: dict[str, Any] = {"config": (tyro.conf.AvoidSubcommands,)}
    if default is not None:
        options["default"] = default
    if {"-h", "--help"} & set(args):
        return tyro.cli(cls, prog=f"naht {command}", args=list(args), **options)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return tyro.cli(cls, prog=f"naht {command}", args=list(args), **options)
    except SystemExit as e:
        raise NahtError(f"{one_line(said.getvalue())} (naht {command} --help shows all)") from e


def leading_names(args: Sequence[str], names: Sequence[str], help_text: str) -> tuple[list[str], list[str]]:
    """Split leading positional arguments off. Without them, --help prints the command's own help."""
    values: list[str] = []
    for arg in args[: len(names)]:
        if arg.startswith("-"):
            break
        values.append(arg)
    if len(values) < len(names):
        if {"-h", "--help"} & set(args):
            print(help_text)
            raise SystemExit(0)
        raise NahtError(f"{' '.join(names[len(values) :])} missing: {help_text.splitlines()[0]}")
    return values, list(args[len(values) :])


def take_flag(args: Sequence[str], flag: str, default: str) -> tuple[str, list[str]]:
    """Split one flag off that decides on the defaults of the others."""
    value, rest, items = default, [], iter(args)
    for item in items:
        if item == flag:
            value = next(items, "")
        elif item.startswith(f"{flag}="):
            value = item.partition("=")[2]
        else:
            rest.append(item)
    return value, rest


TRAIN_HELP = """usage: naht train TASK ALGORITHM [--preset PRESET] [--seeds K] [OPTIONS]

Train a team that cooperates with strangers, for example:

  naht train bit-game poam                       one run, tuned settings, into runs/bit-game/poam/seed0
  naht train bit-game poam --seeds 5             seeds 0 to 4, spread over the cores
  naht train bit-game poam --preset paper        the paper's hyper-parameters
  naht train bit-game ippo-naht --algorithm.lr 1e-3 --task.num-agents 5
  naht train bit-game poam --teams.num-controlled 1 --teams.teammates bernoulli turns runs/bit-game/poam/seed0

A killed or stopped run goes on exactly where it was: naht resume RUN.
TASK and ALGORITHM are listed by `naht list tasks` and `naht list algorithms`; every setting of a pair, with its
default and meaning, by for instance `naht train bit-game poam --help`."""


@dataclass(frozen=True)
class Train(Generic[TaskT]):
    """Train a team that cooperates with strangers. --preset tuned|paper|released chooses the defaults below."""

    run: Annotated[RunConfig[TaskT], tyro.conf.arg(name="")]
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


def train(args: Sequence[str]) -> None:
    (task_name, algorithm), rest = leading_names(args, ("TASK", "ALGORITHM"), TRAIN_HELP)
    preset, rest = take_flag(rest, "--preset", "tuned")
    defaults = run_config(task_name, algorithm, cast(Preset, preset))
    kind = cast(Any, Train)[type(defaults.task)]  # the flags of this very task
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
    with Display() as display:
        run_all(jobs, workers=chosen.workers, report=display.show, checkpoint_every=chosen.checkpoint_every)
    print_finished([job.folder for job in jobs])


def print_finished(folders: Sequence[Path]) -> None:
    table = Table("run", "test return (last)", "test return (best)", box=None, header_style="bold")
    for folder in folders:
        last, best = load_agent(folder / "last.safetensors"), load_agent(folder / "best.safetensors")
        table.add_row(str(folder), f"{last.card['test_return']:.3f}", f"{best.card['test_return']:.3f}")
    console = Console()
    console.print(table)
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


def resume(args: Sequence[str]) -> None:
    chosen = parse(Resume, "resume", args)
    if not chosen.runs:
        raise NahtError("RUN missing: usage: naht resume RUN [RUN ...]")
    jobs = [Job(read_config(folder), folder) for folder in chosen.runs]
    with Display() as display:
        run_all(jobs, workers=chosen.workers, report=display.show, checkpoint_every=chosen.checkpoint_every)
    print_finished(chosen.runs)


@dataclass(frozen=True)
class Evaluate:
    """Play saved agents with teammates: the M-N score, one row per episode.

    For every N, N copies of the agent and M - N teammates sit in random slots.
    """

    agents: tyro.conf.Positional[tuple[Path, ...]]
    """Agent files or run folders (their best agent). Several are taken as independent trials of one method."""
    teammates: tuple[str, ...] = ()
    """Scripted bots or saved agents; default: those the agent was trained with."""
    num_controlled: tuple[int, ...] = ()
    """Values of N; default: 1 to M - 1, or M without teammates."""
    episodes: int = 128
    """Episodes per agent and N."""
    seed: int = 0
    """Seed of teams, slots and worlds."""
    out: Path | None = None
    """CSV file for the rows."""


def evaluate(args: Sequence[str]) -> None:
    chosen = parse(Evaluate, "evaluate", args)
    if not chosen.agents:
        raise NahtError("AGENT missing: usage: naht evaluate AGENT [AGENT ...]")
    rows = []
    for path, agent in [(path, load_agent(path)) for path in chosen.agents]:
        env = decode(agent.card["task"])
        names = chosen.teammates or tuple(agent.card["config"]["teams"]["teammates"])
        rows += evaluate_mn(
            env,
            Population([Member(agent.name, agent.policy, agent.params)]),
            Population(load_members(names, env.spec)),
            episodes=chosen.episodes,
            seed=chosen.seed,
            num_controlled=chosen.num_controlled or (None if names else (env.spec.num_agents,)),
            trial=str(path),
        )
    unit = "agents" if len(chosen.agents) > 1 else "episodes of the one agent"
    table = Table("N", "mean return", f"95 % CI over {unit}", "episodes", box=None, header_style="bold")
    for label, x, count in summarise(rows):
        table.add_row(label, f"{x.mean:.3f}", f"± {x.half_width:.3f}", str(count))
    console = Console()
    console.print(table)
    if chosen.out:
        write_rows(chosen.out, rows)
        console.print(f"{len(rows)} rows in {chosen.out}", soft_wrap=True)


@dataclass(frozen=True)
class List:
    """List what there is."""

    out: Path = Path("runs")
    """Folder of runs to look for saved agents in."""


def list_(args: Sequence[str]) -> None:
    kinds = ("tasks", "algorithms", "agents")
    usage = "usage: naht list tasks|algorithms|agents [--out RUNS]\n\nWhat there is to train on, with and against."
    (kind,), rest = leading_names(args, ("KIND (tasks, algorithms or agents)",), usage)
    if kind not in kinds:
        raise unknown("kind of thing to list", kind, kinds)
    folder = parse(List, f"list {kind}", rest).out
    if kind == "tasks":
        table = Table("task", "agents", "actions", "observation", "horizon", "what it is")
        for name, entry in TASKS.items():
            s = entry.make().spec
            sizes = [str(n) for n in (s.num_agents, s.num_actions, s.obs_size, s.horizon)]
            table.add_row(name, *sizes, entry.description)
    elif kind == "algorithms":
        table = Table("algorithm", "what it is")
        for name, algorithm in ALGORITHMS.items():
            table.add_row(name, algorithm.description)
    else:
        table = Table("agent", "task", "what it is")
        for task_name, bots in BOTS.items():
            for name, bot in bots.items():
                table.add_row(name, task_name, f"scripted: {bot.description}")
        for path in sorted(folder.glob("**/best.safetensors")):
            agent = load_agent(path)
            facts = f"{agent.name}, {agent.card['steps']:,} steps, test return {agent.card['test_return']:.2f}"
            table.add_row(str(path.parent), agent.spec.name, facts)
    table.box, table.header_style = None, "bold"
    Console().print(table)


def train_prey(args: Sequence[str]) -> None:
    make_prey(parse(PreyRecipe, "train-prey", args))


STUDIES = {"bit-game": (BitGameStudy, reproduce), "time-to-return": (TimeToReturnStudy, time_to_return)}


def reproduce_(args: Sequence[str]) -> None:
    usage = f"usage: naht reproduce {'|'.join(STUDIES)} [OPTIONS]\n\nRun a study and print its table."
    (name,), rest = leading_names(args, (f"STUDY ({' or '.join(STUDIES)})",), usage)
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    settings, run = cast(Any, STUDIES[name])
    run(parse(settings, f"reproduce {name}", rest))


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices, settings and speed, and say what to change where it is slow."""

    quick: bool = False
    """Leave out the measurements of speed."""


def doctor(args: Sequence[str]) -> None:
    examine(quick=parse(Doctor, "doctor", args).quick)


@dataclass(frozen=True)
class Watch:
    """Record episodes of agents and teammates as a film or a strip of frames.

    One episode with the teammates of its training: naht watch runs/mpe-pp/poam/seed0

    Three with others: naht watch AGENT --teammates chaser random --num-controlled 1 --episodes 3 --out match.gif

    Eight frames side by side: naht watch AGENT --out strip.png --frames 8
    """

    agents: tyro.conf.Positional[tuple[Path, ...]]
    """Agent files or run folders (their best agent). Controlled seats are filled from them; the task is the first's."""
    teammates: tuple[str, ...] = ()
    """Scripted bots or saved agents; default: those the first agent was trained with."""
    num_controlled: int | None = None
    """N; None: drawn from 1 to M - 1 for every episode, or M without teammates."""
    mix: bool = False
    """Draw every teammate on its own instead of one for all their seats of an episode."""
    episodes: int = 1
    """Episodes to record."""
    seed: int = 0
    """Seed of teams, slots and worlds."""
    out: Path = Path("watch.gif")
    """Where to: .gif or .mp4 (needs ffmpeg) for a film, .png for a strip. An old file is replaced."""
    fps: int = 10
    """Frames per second of a film."""
    frames: int | None = None
    """Evenly spaced frames of each episode; None: all in a film, 8 in a strip."""


def watch(args: Sequence[str]) -> None:
    chosen = parse(Watch, "watch", args)
    if not chosen.agents:
        raise NahtError("AGENT missing: usage: naht watch AGENT [AGENT ...]")
    paths = [str(path) for path in chosen.agents]
    agents = [load_agent(path) for path in paths]
    card = agents[0].card
    env = decode(card["task"])
    members = [saved_member(agent, path, env.spec) for agent, path in zip(agents, paths, strict=True)]
    controlled = Population(told_apart(members, paths))
    check_output(env, chosen.out, fps=chosen.fps, frames=chosen.frames)
    teammates = chosen.teammates or tuple(card["config"]["teams"]["teammates"])
    replays = record(
        env,
        controlled,
        Population(load_members(teammates, env.spec)),
        num_controlled=chosen.num_controlled or ("uniform" if teammates else "all"),
        mix=chosen.mix,
        episodes=chosen.episodes,
        seed=chosen.seed,
    )
    save_replay(replays, chosen.out, fps=chosen.fps, frames=chosen.frames)
    table = Table("episode", "team (* controlled)", "steps", "return", box=None, header_style="bold")
    table.columns[1].overflow = "fold"  # names may be long paths
    for r in replays:
        seats = [f"*{name}" if c else name for name, c in zip(r.seats, r.controlled, strict=True)]
        table.add_row(str(r.episode + 1), ", ".join(seats), str(r.length), f"{r.episode_return:.3f}")
    console = Console()
    console.print(table)
    console.print(f"Saved as {chosen.out}", soft_wrap=True)
