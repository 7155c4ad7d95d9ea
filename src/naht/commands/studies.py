"""naht list, naht train-prey, naht doctor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from naht.agents.saved import load_agent
from naht.agents.scripted import BOTS, OFFERED, bots_of
from naht.agents.zoo import ZOO, find_agents, zoo_tasks
from naht.commands.parsing import leading_names, parse, said_return, said_steps
from naht.doctor import examine
from naht.errors import NahtError, unknown
from naht.experiments.prey import PreyRecipe
from naht.experiments.prey import train_prey as make_prey
from naht.learning.algorithms import ALGORITHMS
from naht.plugins import Registry
from naht.tasks import TASKS
from naht.terminal import terminal


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
        for task_name in {**BOTS, **{teammate.task: () for teammate in OFFERED.values()}}:
            for name, bot in bots_of(task_name).items():
                table.add_row(name, task_name, f"scripted: {bot.description}")
        for task_name in zoo_tasks():
            for name, returns in _zoo_returns(task_name).items():
                facts = f"{len(returns)} trained teams, self-play returns {min(returns):.1f} to {max(returns):.1f}"
                table.add_row(f"zoo/{name}", task_name, facts)
        for path in sorted(folder.glob("**/best.safetensors")):
            try:
                agent = load_agent(path)
            except NahtError as e:
                table.add_row(str(path.parent), "?", str(e))
                continue
            facts = f"{agent.name}, {said_steps(agent)} steps, return {said_return(agent)}"
            table.add_row(str(path.parent), agent.spec.name, facts)
    table.box, table.header_style = None, "bold"
    terminal().print(table)
    tables: dict[str, Registry[Any]] = {"tasks": TASKS, "algorithms": ALGORITHMS, "agents": OFFERED}
    for problem in tables[kind].broken.values():
        terminal().print(f"[red]{escape(str(problem))}", soft_wrap=True)


def _zoo_returns(task_name: str) -> dict[str, list[float]]:
    """Self-play returns of the shipped teams by algorithm."""
    returns: dict[str, list[float]] = {}
    for path in find_agents(f"{ZOO}/{task_name}") or ():
        card = load_agent(path).card
        returns.setdefault(card["algorithm"], []).append(card["measured"]["return"])
    return returns


def train_prey(args: Sequence[str]) -> None:
    make_prey(parse(PreyRecipe, "train-prey", args))


@dataclass(frozen=True)
class Doctor:
    """Show versions, devices, settings and speed, and say what to change where it is slow."""

    quick: bool = False
    """Leave out the measurements of speed."""


def doctor(args: Sequence[str]) -> None:
    examine(quick=parse(Doctor, "doctor", args).quick)
