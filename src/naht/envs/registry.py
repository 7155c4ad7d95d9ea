"""The tasks by name. Adding one is an entry here and a file beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from naht.envs.base import Environment
from naht.envs.bit_game import BitGame
from naht.envs.predator_prey import PredatorPrey
from naht.envs.smac.maps import MAPS
from naht.envs.smac.task import Smac
from naht.errors import NahtError, unknown


@dataclass(frozen=True)
class Task:
    """An entry in the list of tasks."""

    description: str
    make: Callable[..., Environment]
    """A dataclass of settings that is an environment."""
    teammates: tuple[str, ...]
    """The uncontrolled population, unless the user names another."""


TASKS: dict[str, Task] = {
    "bit-game": Task("M agents pick bits; the team earns M when exactly one is 1", BitGame, ("bernoulli",)),
    "mpe-pp": Task("M predators must touch a faster prey together", PredatorPrey, ("zoo/seed0",)),
    **{
        name: Task(
            f"SMAC rules, simulated: {m.allies} {m.ally}s against {m.enemies} {m.enemy}s (SMAC's {m.smac_name})",
            partial(Smac, name),
            ("nearest", "weakest", "first"),
        )
        for name, m in MAPS.items()
    },
}


def task(name: str) -> Task:
    """The entry of a task."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]


def make_env(name: str, **settings: Any) -> Environment:
    """An environment by name: `make_env("bit-game", num_agents=5)`."""
    try:
        return task(name).make(**settings)
    except TypeError as e:
        raise NahtError(f"task {name} does not take these settings: {e}") from e
