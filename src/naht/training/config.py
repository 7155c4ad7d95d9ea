"""The settings of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, TypeVar

import tyro

from naht.config import MOST_ENVS, Amount, Count, Range, Seed, setting
from naht.envs.base import Environment
from naht.errors import unknown
from naht.learning.algorithms import ALGORITHMS
from naht.learning.learner import LearnerSettings
from naht.pieces import Pieces
from naht.tasks import GENERAL, TASKS, Preset, make_env
from naht.teams.sampler import NumControlled, Slots


@setting
@dataclass(frozen=True)
class TeamsConfig:
    """The team sampling procedure X(U, C) of the run."""

    num_controlled: NumControlled = "uniform"
    """N: 'uniform' on 1..M-1, 'all', one number, or the probabilities of N = 0..M."""
    teammates: tuple[str, ...] = ()
    """The uncontrolled population U: names of scripted bots (`naht list agents`) or paths of saved agents."""
    mix: bool = False
    """Draw every uncontrolled seat on its own instead of one team per episode."""
    replace: bool = True
    """With --teams.mix: may the same teammate sit twice?"""
    slots: Slots = "random"
    """Where the controlled agents sit: in random seats, the first or the last ones."""


TaskT = TypeVar("TaskT", bound=Environment)
AlgorithmT = TypeVar("AlgorithmT", bound=LearnerSettings)


@setting
@dataclass(frozen=True)
class RunConfig(Generic[TaskT, AlgorithmT]):
    """Everything that determines a run's result."""

    task: TaskT
    """The environment and its settings."""
    algorithm_name: Annotated[str, tyro.conf.Suppress]
    """The name the settings came from; it labels folders and tables."""
    algorithm: AlgorithmT
    """The learner's settings."""
    teams: TeamsConfig = field(default_factory=TeamsConfig)
    """Who plays."""
    seed: Seed = 0
    """Seed of everything random in the run."""
    steps: Count = 100_000
    """Environment steps; a step moves the whole team once."""
    test_every: Count = 5_000
    """Environment steps between tests with greedy policies."""
    test_episodes: Annotated[int, Range(1, MOST_ENVS)] = 128
    """Episodes of each test."""
    final_episodes: Count = 1024
    """Fresh episodes in which the best and the last agent are measured when the run ends, in whole tests. The best test
    of a run is the highest of many and says too much."""
    keep: Amount = 0
    """Agents to keep, evenly spaced over the run, for questions about how things change."""
    devices: Count | None = None
    """Cores or accelerators that share every batch; None: as many as there are. Part of the result: another number
    draws other random numbers."""
    pieces: Pieces = Pieces()
    """How much is computed at once."""


def run_config(
    task: str | Environment,
    algorithm_name: str,
    preset: Preset = "tuned",
    *,
    seed: int = 0,
    **env_settings: Any,
) -> RunConfig:
    """The settings of a run by names; change single ones with `dataclasses.replace`.

    A `task` that is an environment, and not one that is known by its name, starts from general settings and has no
    teammates yet: name them in `teams.teammates`.
    """
    env: Any = make_env(task, **env_settings) if isinstance(task, str) else task
    name = env.spec.name
    entry = TASKS.get(name)
    presets = entry.presets if entry else {"tuned": GENERAL}
    algorithm = ALGORITHMS[algorithm_name]
    if preset not in presets:
        raise unknown("preset", preset, presets)
    defaults = presets[preset]
    changes = algorithm.changes(name, preset) | dict(defaults.changes.get(algorithm_name, {}))
    settings: Any = defaults.settings(algorithm.settings)
    teammates = () if entry is None or algorithm.num_controlled == "all" else entry.teammates
    return RunConfig(
        task=env,
        algorithm_name=algorithm_name,
        algorithm=replace(settings, **changes),
        teams=TeamsConfig(algorithm.num_controlled, teammates),
        seed=seed,
        steps=defaults.steps,
        test_every=defaults.test_every,
        test_episodes=defaults.test_episodes,
        devices=defaults.devices,
    )
