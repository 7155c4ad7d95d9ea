"""Flags from dataclasses, mistakes in one line."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from naht.agents.saved import Agent
from naht.agents.zoo import ZOO, find_agents
from naht.envs.base import EnvSpec
from naht.errors import NahtError
from naht.teams.population import Population, load_members

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


def said_steps(agent: Agent) -> str:
    """The steps that an agent was trained for."""
    return f"{agent.card['steps']:,}" if "steps" in agent.card else "?"


def said_return(agent: Agent) -> str:
    """An agent's return in fresh episodes, which is on its card when its run has ended."""
    measured = agent.card.get("measured")
    return f"{measured['return']:.2f} ± {measured['half_width_95']:.2f}" if measured else "not measured yet"


def teammates_for(
    agent: Agent, spec: EnvSpec, named: tuple[str, ...], trust: bool
) -> tuple[Population, tuple[str, ...]]:
    """The teammates that the user named, else those of the agent's training, and their names.

    What a card names is not run unless the user trusts it.
    """
    if named:
        return Population(load_members(named, spec)), named
    trained_with = tuple(agent.card.get("config", {}).get("teams", {}).get("teammates", ()))
    found_in = None if trust else f"the card of {agent.name}"
    return Population(load_members(trained_with, spec, found_in=found_in)), trained_with


def agent_files(texts: Sequence[str]) -> list[Path]:
    """The agents that a user means by files, folders and names of the zoo."""
    files: list[Path] = []
    for text in texts:
        found = find_agents(text)
        if found is None:
            raise NahtError(f"{text} is no agent, run or population, and not of the zoo ({ZOO}/TASK)")
        files += found
    return files
