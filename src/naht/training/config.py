"""The settings of a run, and the named algorithms with their presets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from naht.agents.teammate_model import ModelConfig
from naht.config import setting
from naht.envs.base import Environment
from naht.envs.registry import make_env, task
from naht.errors import require, unknown
from naht.learning.learner import AlgorithmConfig
from naht.learning.ppo import PPOConfig
from naht.teams.sampler import NumControlled

Preset = Literal["tuned", "paper", "released"]


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


TaskT = TypeVar("TaskT", bound=Environment)


@setting
@dataclass(frozen=True)
class RunConfig(Generic[TaskT]):
    """Everything that determines a run's result."""

    task: TaskT
    """The environment and its settings."""
    algorithm_name: Annotated[str, tyro.conf.Suppress]
    """The name the settings came from; it labels folders and tables."""
    algorithm: AlgorithmConfig
    """The learner's settings."""
    teams: TeamsConfig = field(default_factory=TeamsConfig)
    """Who plays."""
    seed: int = 0
    """Seed of everything random in the run."""
    steps: int = 100_000
    """Environment steps; a step moves the whole team once."""
    test_every: int = 5_000
    """Environment steps between tests with greedy policies."""
    test_episodes: int = 128
    """Episodes of each test."""

    def __post_init__(self) -> None:
        for name in ("steps", "test_every", "test_episodes"):
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: it must be at least 1")
        require(0 <= self.seed < 2**32, f"seed is {self.seed}: it must lie between 0 and 2**32 - 1")


@dataclass(frozen=True)
class Algorithm:
    """A named algorithm: what it changes in the common settings."""

    description: str
    settings: dict[str, Any]
    """Changes to the learner's settings."""
    released: dict[str, Any]
    """Further changes in the 'released' preset: how the paper's authors ran it where that differs from the paper."""
    num_controlled: NumControlled = "uniform"


ALGORITHMS: dict[str, Algorithm] = {
    "poam": Algorithm(
        "PPO with agent modelling, trained with N uniform on 1..M-1",
        settings={},
        released={"critic_memory": "stored"},
    ),
    "ippo-naht": Algorithm(
        "POAM without the teammate model",
        settings={"modelling": False},
        released={"actor_memory": "stored", "critic_memory": "stored"},
    ),
    "poam-aht": Algorithm(
        "POAM trained as the only controlled agent, N = 1",
        settings={},
        released={"critic_memory": "stored"},
        num_controlled=1,
    ),
}

_BIT_GAME = PPOConfig(
    num_envs=16,
    epochs=4,
    minibatches=3,
    value_loss="huber",
    model_epochs=4,
    model_minibatches=2,
    model=ModelConfig(hidden=16, embedding=16),
    chunk=8,
)

PRESETS: dict[str, dict[str, PPOConfig]] = {
    "bit-game": {
        "paper": _BIT_GAME,
        "released": _BIT_GAME,
        "tuned": replace(_BIT_GAME, gamma=0.9, gae_lambda=0.5, entropy_end=0.0, lr_end=1e-4),
    },
}
"""Learner settings by task. `paper`: the published hyper-parameters, trained through time everywhere. `released`: the
same with the authors' stored-hidden-state training. `tuned`: what works best here."""

STEPS: dict[str, int] = {"bit-game": 100_000}


def run_config(
    task_name: str, algorithm_name: str, preset: Preset = "tuned", *, seed: int = 0, **env_settings: Any
) -> RunConfig:
    """The settings of a run by names; change single ones with `dataclasses.replace`."""
    env = make_env(task_name, **env_settings)
    if algorithm_name not in ALGORITHMS:
        raise unknown("algorithm", algorithm_name, ALGORITHMS)
    if preset not in PRESETS[task_name]:
        raise unknown("preset", preset, PRESETS[task_name])
    algorithm = ALGORITHMS[algorithm_name]
    changes = algorithm.settings | (algorithm.released if preset == "released" else {})
    return RunConfig(
        task=env,
        algorithm_name=algorithm_name,
        algorithm=replace(PRESETS[task_name][preset], **changes),
        teams=TeamsConfig(algorithm.num_controlled, task(task_name).teammates),
        seed=seed,
        steps=STEPS[task_name],
        test_every=STEPS[task_name] // 20,
    )
