"""Environments of other libraries, known by a name: a file holds the name and sizes, never what to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from naht.config import Width
from naht.envs.base import EnvSpec, Horizon, TeamSize
from naht.errors import require
from naht.tasks import TASKS, make_env

T = TypeVar("T")


@dataclass(frozen=True)
class NamedTask:
    """What is the same for tasks of any library."""

    name: str
    num_agents: TeamSize
    obs_size: Width
    state_size: Width
    num_actions: Width
    horizon: Horizon
    team_reward: str = "sum"

    @cached_property  # asked for in every step of every world
    def spec(self) -> EnvSpec:
        sizes = self.num_agents, self.obs_size, self.state_size, self.num_actions, self.horizon
        return EnvSpec(self.name, *sizes)


def behind(name: str, made: Mapping[str, T], library: str) -> T:
    """What stands behind a name, of those that a user has `made` from a library; a registered task makes its own."""
    if name not in made and name in TASKS:
        make_env(name)
    how = f"call naht.from_{library.lower()}(..., name='{name}') first, as for its training"
    require(name in made, f"'{name}' is an environment of {library} that nobody has made here: {how}")
    return made[name]
