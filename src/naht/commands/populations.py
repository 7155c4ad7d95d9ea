"""naht population build, list, show, export, verify."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, cast

import tyro
from rich.table import Table

from naht.agents.saved import Agent, load_agent
from naht.agents.zoo import zoo_tasks
from naht.clusters.choice import Elsewhere, hired
from naht.commands.parsing import agent_files, leading_names, parse, said_return, said_steps
from naht.errors import require, unknown
from naht.evaluation.tables import WON
from naht.experiments import populations
from naht.experiments.populations import PopulationRecipe
from naht.learning.algorithms import self_play_algorithms
from naht.storage import check_output, read_arrays
from naht.tasks import Preset, make_env
from naht.terminal import terminal
from naht.training.config import TaskT
from naht.training.progress import Display

HELP = """usage: naht population build|list|show|export|verify ...

Teams to work with: trained in self-play by several algorithms and seeds, each saved with a card.

  naht population build mpe-pp --seeds 5         train five algorithms x five seeds; killed, go on with the same command
  naht population list                           agents that come with naht
  naht population list populations/mpe-pp        agents of a folder
  naht population show zoo/mpe-pp/vdn-seed3      an agent's card
  naht population export populations/mpe-pp --out strangers --float16
  naht population verify zoo/mpe-pp              checksums, tasks, and returns played anew

naht population COMMAND --help explains each."""


def population(args: Sequence[str]) -> None:
    actions = {"build": build, "list": list_, "show": show, "export": export, "verify": verify}
    (action,), rest = leading_names(args, ("COMMAND (build, list, show, export or verify)",), HELP)
    if action not in actions:
        raise unknown("population command", action, actions)
    actions[action](rest)


@dataclass(frozen=True)
class Build(Generic[TaskT]):
    """Train algorithms x seeds in self-play and save every team as an agent with a card.

    What is there stays; a stopped or killed build goes on with the same command and gives the same agents.
    """

    task: TaskT
    """The environment and its settings."""
    algorithms: tuple[str, ...] = field(default_factory=self_play_algorithms)
    """Who trains them."""
    seeds: int = 5
    """Teams per algorithm."""
    first_seed: int = 0
    """The first seed."""
    preset: Preset = "tuned"
    """The settings of all runs."""
    steps: int | None = None
    """Environment steps of every run; None: as the preset says."""
    episodes: int = 1024
    """Self-play episodes behind the return on each card."""
    out: Path | None = None
    """Folder of the population; None: populations/TASK."""
    workers: int | None = None
    """Runs trained at the same time; None: one per core."""
    checkpoint_every: float = 60.0
    """Seconds between checkpoints. Does not influence the result."""
    elsewhere: Annotated[Elsewhere, tyro.conf.arg(name="")] = Elsewhere()
    """Other machines."""


def build(args: Sequence[str]) -> None:
    (name,), rest = leading_names(args, ("TASK",), f"usage: naht population build TASK [OPTIONS]\n\n{HELP}")
    env = make_env(name)
    kind = cast(Any, Build)[type(env)]  # the flags of this very task
    chosen: Build = parse(kind, f"population build {name}", rest, default=kind(task=env))
    recipe = PopulationRecipe(
        task_name=name,
        task=chosen.task,
        algorithms=chosen.algorithms,
        seeds=chosen.seeds,
        first_seed=chosen.first_seed,
        preset=chosen.preset,
        steps=chosen.steps,
        out=chosen.out or Path("populations") / name,
        episodes=chosen.episodes,
    )
    with hired(chosen.elsewhere, recipe.out, workers=chosen.workers) as crew, Display() as display:
        files = populations.build(
            recipe,
            workers=chosen.workers,
            crew=crew,
            report=display.show,
            checkpoint_every=chosen.checkpoint_every,
        )
    print_agents([load_agent(path) for path in files])
    terminal().print(f"Work with them: naht train {name} poam --teams.teammates {recipe.out}", soft_wrap=True)


def _table(agents: Sequence[Agent]) -> list[list[str]]:
    """A head and a row per agent; with win rates if any of them fights battles."""
    measured = [agent.card.get("measured", {}) for agent in agents]
    rows = [["agent", "task", "steps", "return ± 95 % interval"]]
    rows += [[agent.name, agent.spec.name, said_steps(agent), said_return(agent)] for agent in agents]
    if any(WON in found for found in measured):
        rows[0].append("battles won")
        for row, found in zip(rows[1:], measured, strict=True):
            row.append(f"{100 * found[WON]:.1f} %" if WON in found else "")
    return rows


def print_agents(agents: Sequence[Agent]) -> None:
    head, *rows = _table(agents)
    table = Table(*head, box=None, header_style="bold")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    terminal().print(table)


@dataclass(frozen=True)
class Those:
    """List agents with their returns in fresh episodes, in teams as in their training (self-play in populations)."""

    agents: tyro.conf.Positional[tuple[str, ...]] = ()
    """Files, folders, or agents of the zoo; default: the whole zoo."""
    markdown: bool = False
    """As a table for a document."""


def list_(args: Sequence[str]) -> None:
    chosen = parse(Those, "population list", args)
    agents = [load_agent(path) for path in agent_files(chosen.agents or [f"zoo/{task}" for task in zoo_tasks()])]
    if chosen.markdown:
        print(markdown(agents))
    else:
        print_agents(agents)


def markdown(agents: Sequence[Agent]) -> str:
    """The same table for a document."""
    head, *rows = _table(agents)
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Show:
    """Show the card of an agent."""

    agent: tyro.conf.Positional[str]
    """A file, a run's folder, or an agent of the zoo."""


def show(args: Sequence[str]) -> None:
    for path in agent_files([parse(Show, "population show", args).agent]):
        agent = load_agent(path)
        facts = {"name": agent.name, "file": str(path), "size": f"{path.stat().st_size / 1024:.0f} KiB"}
        header = read_arrays(path)[1]
        facts |= {"sha256": header["sha256"], "policy": header["policy"]}
        print(json.dumps(facts | agent.card, indent=2))


@dataclass(frozen=True)
class Export:
    """Copy agents with their cards to a folder, without the runs they come from."""

    agents: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders, or agents of the zoo."""
    out: Annotated[Path, tyro.conf.arg(name="out")]
    """The folder to copy them to."""
    float16: bool = False
    """Half the size: parameters in half precision, where that changes at most one greedy action in a thousand."""


def export(args: Sequence[str]) -> None:
    chosen = parse(Export, "population export", args)
    check_output(chosen.out, folder=True)
    agents = [load_agent(path) for path in agent_files(chosen.agents)]
    files = populations.export(agents, chosen.out, float16=chosen.float16)
    columns = ("agent", "precision", "KiB", "greedy actions that half precision changes")
    table = Table(*columns, box=None, header_style="bold")
    for path, float16, changes in files:
        share = "" if changes is None else f"{100 * changes:.3f} %"
        table.add_row(path.stem, "half" if float16 else "full", f"{path.stat().st_size / 1024:.0f}", share)
    console = terminal()
    console.print(table)
    console.print(f"In {chosen.out}", soft_wrap=True)


@dataclass(frozen=True)
class Verify:
    """Check agents against their cards: checksum, sizes, task, and the return in self-play, played anew."""

    agents: tyro.conf.Positional[tuple[str, ...]]
    """Files, folders, or agents of the zoo."""
    episodes: int = 256
    """Episodes to play with each."""


def verify(args: Sequence[str]) -> None:
    chosen = parse(Verify, "population verify", args)
    require(
        bool(chosen.agents), "AGENT missing: usage: naht population verify AGENT [AGENT ...], for example zoo/mpe-pp"
    )
    for path in agent_files(chosen.agents):
        print(f"{path}: {populations.verify(path, episodes=chosen.episodes)}", flush=True)
