"""naht evaluate [selfplay|crossplay], naht watch, naht curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from rich.table import Table

from naht.agents.saved import load_agent, task_of
from naht.commands.parsing import agent_files, parse, teammates_for
from naht.envs.base import Environment
from naht.envs.smac.starcraft import in_starcraft
from naht.errors import NahtError, require
from naht.evaluation.crossplay import cross_play, self_play
from naht.evaluation.play import evaluate_mn
from naht.evaluation.statistics import mean_interval
from naht.evaluation.tables import WON, summarise, win, write_intervals, write_rows
from naht.report.curves import find_tests, plot_tests
from naht.report.figures import grouped_bars, heat_table
from naht.report.replay import check_replay, record, save_replay
from naht.storage import check_output, saved
from naht.teams.population import Member, Population, saved_member, told_apart
from naht.terminal import terminal


@dataclass(frozen=True)
class Evaluate:
    """Play saved agents with teammates: the M-N score, one row per episode.

    For every N, N copies of the agent and M - N teammates sit in random slots.
    """

    agents: tyro.conf.Positional[tuple[str, ...]]
    """Agent files, run folders (their best agent), agents of the zoo. Several are independent trials of one method."""
    teammates: tuple[str, ...] = ()
    """Scripted bots or saved agents; default: those the agent was trained with."""
    trust: bool = False
    """Run teammates in Python that the agent's card names: for agents of your own."""
    num_controlled: tuple[int, ...] = ()
    """Values of N; default: 1 to M - 1, or M without teammates."""
    episodes: int = 128
    """Episodes per agent and N."""
    seed: int = 0
    """Seed of teams, slots and worlds."""
    world: Literal["simulator", "starcraft"] = "simulator"
    """Play the SMAC maps in StarCraft II itself: 'starcraft', for those who own the game (docs/starcraft.md)."""
    out: Path | None = None
    """CSV file for the rows."""


def evaluate(args: Sequence[str]) -> None:
    if args and args[0] in MEETINGS:
        MEETINGS[args[0]](args[1:])
        return
    chosen = parse(Evaluate, "evaluate", args)
    if not chosen.agents:
        raise NahtError(f"AGENT missing: usage: naht evaluate AGENT [AGENT ...], or {' or '.join(MEETINGS)} POPULATION")
    if chosen.out:
        check_output(chosen.out)
    rows = []
    files = agent_files(chosen.agents)
    agents = [load_agent(path) for path in files]
    env = task_of(agents)
    if chosen.world == "starcraft":
        env = in_starcraft(env, chosen.seed)
    for path, agent in zip(files, agents, strict=True):
        strangers, names = teammates_for(agent, env.spec, chosen.teammates, chosen.trust)
        rows += evaluate_mn(
            env,
            Population([Member(agent.name, agent.policy, agent.params)]),
            strangers,
            episodes=chosen.episodes,
            seed=chosen.seed,
            num_controlled=chosen.num_controlled or (None if names else (env.spec.num_agents,)),
            trial=str(path),
        )
    unit = "agents" if len({row.trial for row in rows}) > 1 else "episodes of the one agent"
    table = Table("N", "mean return", f"95 % CI over {unit}", "episodes", box=None, header_style="bold")
    wins = summarise(rows, win) if all(WON in row.metrics for row in rows) else []
    if wins:
        table.add_column("win rate")
    for i, (label, x, count) in enumerate(summarise(rows)):
        table.add_row(
            label, f"{x.mean:.3f}", f"± {x.half_width:.3f}", str(count), *[f"{w[1]:.2f}" for w in wins[i : i + 1]]
        )
    console = terminal()
    console.print(table)
    if chosen.out:
        out = saved(lambda path: write_rows(path, rows), chosen.out)
        console.print(f"{len(rows)} rows in {out}", soft_wrap=True)


@dataclass(frozen=True)
class Meet:
    """Who gets on with whom in a population.

    selfplay: teams of every algorithm with themselves (matched seeds) and with teams of its other seeds (mismatched).

    crossplay: every algorithm with every other, in pairs of seeds that every seed takes part in. On the diagonal, teams
    meet themselves; the last column is the mean over the others.
    """

    agents: tyro.conf.Positional[tuple[str, ...]]
    """A population: files, folders, or agents of the zoo (zoo/mpe-pp)."""
    episodes: int = 128
    """Episodes per pair and N."""
    all_pairs: bool = False
    """Cross-play: all pairs of seeds."""
    seed: int = 0
    """Seed of slots and worlds."""
    out: Path = Path("evaluation")
    """Folder for the table (.csv) and the figure (.png)."""


def _population(chosen: Meet) -> tuple[Environment, Population, list[str]]:
    """The task, the members, and their algorithms."""
    check_output(chosen.out, folder=True)
    agents = [load_agent(path) for path in agent_files(chosen.agents)]
    if not agents:
        raise NahtError("POPULATION missing: for example zoo/mpe-pp, or the folder of a naht population build")
    env = task_of(agents)
    members = [Member(agent.name, agent.policy, agent.params) for agent in agents]
    return env, Population(members), [agent.fact("algorithm") for agent in agents]


def selfplay(args: Sequence[str]) -> None:
    chosen = parse(Meet, "evaluate selfplay", args)
    env, population, algorithms = _population(chosen)
    scores = self_play(env, population, algorithms, episodes=chosen.episodes, seed=chosen.seed)
    kinds = ("matched seeds", "mismatched seeds", "difference")
    table = Table("algorithm", *kinds, "teams", box=None, header_style="bold")
    for name, matching in scores.items():
        table.add_row(name, *[f"{interval:.2f}" for interval in matching], str(matching.matched.count))
    bars = {name: {kinds[0]: m.matched, kinds[1]: m.mismatched} for name, m in scores.items()}
    rows = [(name, kind, i) for name, matching in scores.items() for kind, i in zip(kinds, matching, strict=True)]

    def write(folder: Path) -> None:
        write_intervals(folder / "selfplay.csv", ("algorithm", "seeds"), rows)
        grouped_bars(folder / "selfplay.png", bars, y_label=f"M-N score on {env.spec.name}")

    console = terminal()
    console.print(table)
    console.print(f"Table and figure: {saved(write, chosen.out)}/selfplay.csv, selfplay.png", soft_wrap=True)


def crossplay(args: Sequence[str]) -> None:
    chosen = parse(Meet, "evaluate crossplay", args)
    env, population, algorithms = _population(chosen)
    result = cross_play(
        env, population, algorithms, all_pairs=chosen.all_pairs, episodes=chosen.episodes, seed=chosen.seed
    )
    names = result.groups
    table = Table("", *names, "others", box=None, header_style="bold", padding=(0, 1, 0, 0))  # fits 80 columns
    for ours in names:
        table.add_row(ours, *[f"{result.cell(ours, theirs):.1f}" for theirs in names], f"{result.row(ours):.1f}")
    rows = [(ours, theirs, result.cell(ours, theirs)) for ours in names for theirs in names]
    rows += [(ours, "mean of others", result.row(ours)) for ours in names]

    def write(folder: Path) -> None:
        write_intervals(folder / "crossplay.csv", ("ours", "theirs"), rows)
        heat_table(folder / "crossplay.png", rows, title=f"M-N scores on {env.spec.name}")

    console = terminal()
    console.print(table)
    console.print(f"With itself, a team does better than with other algorithms by {result.advantage():.2f}")
    console.print(f"Table and figure: {saved(write, chosen.out)}/crossplay.csv, crossplay.png", soft_wrap=True)


MEETINGS = {"selfplay": selfplay, "crossplay": crossplay}


@dataclass(frozen=True)
class Watch:
    """Record episodes of agents and teammates as a film or a strip of frames.

    One episode with the teammates of its training: naht watch runs/mpe-pp/poam/seed0

    Three with others: naht watch AGENT --teammates chaser random --num-controlled 1 --episodes 3 --out match.gif

    Eight frames side by side: naht watch AGENT --out strip.png --frames 8
    """

    agents: tyro.conf.Positional[tuple[str, ...]]
    """Agent files, run folders (their best agent) or agents of the zoo: they fill the controlled seats, on the task of
    the first."""
    teammates: tuple[str, ...] = ()
    """Scripted bots or saved agents; default: those the first agent was trained with."""
    trust: bool = False
    """Run teammates in Python that the agent's card names: for agents of your own."""
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
    select: int | None = None
    """The seat whose sight and reach are shown, in tasks that have them (battles); None: the first controlled one."""


def watch(args: Sequence[str]) -> None:
    chosen = parse(Watch, "watch", args)
    if not chosen.agents:
        raise NahtError("AGENT missing: usage: naht watch AGENT [AGENT ...]")
    files = agent_files(chosen.agents)
    agents = [load_agent(path) for path in files]
    env = task_of(agents[:1])
    paths = [str(path) for path in files]
    members = [saved_member(agent, path, env.spec) for agent, path in zip(agents, paths, strict=True)]
    controlled = Population(told_apart(members, paths))
    check_replay(env, chosen.out, fps=chosen.fps, frames=chosen.frames)
    strangers, teammates = teammates_for(agents[0], env.spec, chosen.teammates, chosen.trust)
    replays = record(
        env,
        controlled,
        strangers,
        num_controlled=("uniform" if teammates else "all") if chosen.num_controlled is None else chosen.num_controlled,
        mix=chosen.mix,
        episodes=chosen.episodes,
        seed=chosen.seed,
        select=chosen.select,
    )
    out = saved(lambda path: save_replay(replays, path, fps=chosen.fps, frames=chosen.frames), chosen.out)
    table = Table("episode", "team (* controlled)", "steps", "return", box=None, header_style="bold")
    table.columns[1].overflow = "fold"  # names may be long paths
    for r in replays:
        seats = [f"*{name}" if c else name for name, c in zip(r.seats, r.controlled, strict=True)]
        table.add_row(str(r.episode + 1), ", ".join(seats), str(r.length), f"{r.episode_return:.3f}")
    console = terminal()
    console.print(table)
    console.print(f"Saved as {out}", soft_wrap=True)


@dataclass(frozen=True)
class Curves:
    """Learning curves of runs over steps and over wall-clock: mean and 95 % band over seeds, a colour per algorithm; of
    battles their win rates too.

    One batch of runs: naht curves runs/mpe-pp

    Two to compare, and when each passes a return: naht curves runs/tuned runs/paper --target 17
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders with runs in them, finished or not."""
    target: float | None = None
    """A return to pass: how many runs do, and after how many steps and minutes (the median of those that do)."""
    out: Path = Path("curves")
    """Folder for the figures."""


def curves(args: Sequence[str]) -> None:
    chosen = parse(Curves, "curves", args)
    if not chosen.folders:
        raise NahtError("FOLDER missing: usage: naht curves FOLDER [FOLDER ...]")
    check_output(chosen.out, folder=True)
    tests = find_tests(chosen.folders)
    require(bool(tests), "none of these runs has been tested yet")
    target = chosen.target
    lines = {} if target is None else {task: {f"return {target:g}": target} for task in tests}
    out = saved(lambda folder: plot_tests(folder, tests, lines), chosen.out)
    columns = ("task", "method", "seeds", "steps", "minutes", "last test", "best agent, fresh episodes")
    table = Table(*columns, header_style="bold", box=None, padding=(0, 1, 0, 0))
    battles = any(len(t.won) for methods in tests.values() for trials in methods.values() for t in trials)
    if battles:
        table.add_column("won")
    if target is not None:
        table.add_column(f"to {target:g} (steps, min)")
    for task, methods in tests.items():
        for name, trials in methods.items():
            last = mean_interval([float(t.returns[-1]) for t in trials])
            # What selected the best agent is not what it is worth: that was measured when the run ended.
            fresh = [t.measured for t in trials if t.measured]
            done = len(fresh) == len(trials)
            length = [max(float(getattr(t, axis)[-1]) for t in trials) for axis in ("steps", "seconds")]
            row = [task, name, str(len(trials)), f"{length[0]:,.0f}", f"{length[1] / 60:.1f}", f"{last:.1f}"]
            row.append(f"{mean_interval([m['return'] for m in fresh]):.1f}" if done else "unfinished")
            if battles:
                row.append(f"{np.mean([m[WON] for m in fresh]):.2f}" if done and WON in fresh[0] else "")
            if target is not None:
                passed = [p for t in trials if (p := t.first_above(target))]
                middle = np.median(passed, axis=0) if passed else None
                when = "" if middle is None else f": {middle[0]:,.0f}, {middle[1] / 60:.1f}"
                row.append(f"{len(passed)} of {len(trials)}{when}")
            table.add_row(*row)
    console = terminal()
    console.print(table)
    console.print(f"Figures: {', '.join(str(path) for path in sorted(out.glob('*over_*.png')))}", soft_wrap=True)
