"""The tasks by name: an environment, who its strangers are, and which settings runs on it have.

Adding one is an entry here and a file in `envs/`, or a package of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from naht.agents.networks import NetworkConfig
from naht.agents.teammate_model import ModelConfig
from naht.agents.zoo import zoo_tasks
from naht.envs.base import Environment
from naht.envs.bit_game import BitGame
from naht.envs.lbf import Lbf
from naht.envs.predator_prey import PredatorPrey
from naht.envs.smac.maps import MAPS
from naht.envs.smac.task import Smac
from naht.errors import NahtError, require
from naht.learning.algorithms import Changes
from naht.learning.learner import LearnerSettings
from naht.learning.ppo import PPOConfig
from naht.learning.value_based import ValueConfig
from naht.plugins import Registry

Preset = Literal["tuned", "paper", "released"]
"""`paper`: the published hyper-parameters, trained through time everywhere. `released`: the same with the authors'
stored-hidden-state training. `tuned`: what works best here."""


@dataclass(frozen=True)
class Defaults:
    """What runs on one task have in one preset, unless the user says otherwise."""

    learners: tuple[LearnerSettings, ...] = ()
    """Settings of learners, one of a class; other learners start from what their class has."""
    steps: int = 1_000_000
    test_every: int = 50_000
    test_episodes: int = 256
    devices: int | None = None
    changes: Mapping[str, Changes] = field(default_factory=dict)
    """Further changes by algorithm."""

    def settings(self, cls: type[LearnerSettings]) -> LearnerSettings:
        """Of a learner, before an algorithm changes anything."""
        return next((settings for settings in self.learners if type(settings) is cls), None) or cls()


_TUNED = PPOConfig(
    num_envs=64,
    epochs=2,
    minibatches=8,
    lr=2e-3,
    lr_end=2e-4,
    entropy=0.01,
    entropy_end=0.001,
    standardise_rewards="std",
    model_epochs=2,
    model_minibatches=8,
    model_lr=1e-3,
)
_TUNED_VALUE = ValueConfig(
    capacity=4000,
    batch=8,
    updates_per_sequence=0.5,
    lr=1e-3,
    td_lambda=0.6,
    target_every=100,
    epsilon_steps=200_000,
    network=NetworkConfig(layers=1, input_norm=False),
)

GENERAL = Defaults((_TUNED, replace(_TUNED_VALUE, standardise_rewards="std")))
"""For tasks that nobody has tuned: batches small enough to learn within a million steps. Rewards keep their mean:
where they are positive, every step would cost without it, and an early end would be worth something."""


@dataclass(frozen=True)
class Task:
    """An entry in the list of tasks."""

    description: str
    make: Callable[..., Environment]
    """A dataclass of settings that is an environment."""
    teammates: tuple[str, ...] = ()
    """The uncontrolled population, unless the user names another."""
    presets: Mapping[str, Defaults] = field(default_factory=lambda: {"tuned": GENERAL})


_BIT_GAME = PPOConfig(
    num_envs=16,
    epochs=4,
    minibatches=3,
    value_loss="huber",
    model_epochs=4,
    model_minibatches=2,
    model=ModelConfig(hidden=16, embedding=16),
)
_BIT_GAME_VALUE = ValueConfig(num_envs=16, capacity=4000)
_BIT_GAME_RUN = Defaults((_BIT_GAME, _BIT_GAME_VALUE), steps=100_000, test_every=5_000, test_episodes=128, devices=1)
_BIT_GAME_TUNED = replace(_BIT_GAME, gamma=0.9, gae_lambda=0.5, entropy_end=0.0, lr_end=1e-4)

_MPE = Defaults((PPOConfig(), ValueConfig(num_envs=8)), steps=20_000_000, test_every=512_000, test_episodes=512)
_MPE_TUNED = replace(
    _TUNED,
    standardise_rewards="mean-std",
    bootstrap_time_limit=True,
    decoded_teammates=2,  # all, for teams of three
)


def _smac(batch_steps: int, steps: int, **changes: Any) -> dict[str, Defaults]:
    """Presets of a map; `changes` are what tuned PPO has of its own there. Episodes end early, so a batch has that many
    steps per environment rather than one horizon; in 'paper' they hold about the published 256 episodes. 'tuned' does
    not subtract the mean from rewards: rewards are positive, and then every step would cost, so that dying soon would
    beat holding out (kiting, on 3s5z)."""
    paper = Defaults(
        (PPOConfig(rollout_steps=batch_steps), ValueConfig(num_envs=8, rollout_steps=batch_steps)),
        steps=20_000_000,
        test_every=512_000,
        test_episodes=512,
        changes={"mappo": {"entropy": 0.03}},
    )
    ppo = replace(
        _TUNED,
        rollout_steps=batch_steps,
        decoded_teammates=1,
        model_lr=2e-3,  # see docs/poam.md
        **changes,
    )
    tuned = Defaults(
        (ppo, replace(_TUNED_VALUE, rollout_steps=batch_steps, standardise_rewards="std")),
        steps=steps,
        test_every=128_000,
        test_episodes=256,
        changes={name: {"bootstrap_time_limit": False, "lr": 1e-3} for name in ("iql", "vdn")},  # see docs/smac.md
    )
    return {"paper": paper, "released": paper, "tuned": tuned}


_SOLDIERS, _ZOO = ("nearest", "weakest", "first"), ("zoo/seed0",)
_MARINES = _smac(32, 1_000_000)
_STALKERS = _smac(64, 6_000_000, gamma=0.97, entropy=0.03, entropy_end=0.01)  # see docs/smac.md

_LBF = Defaults(  # greedy players who want the same cell wait for ever, unless policies are sharp (docs/lbf.md)
    (
        replace(_TUNED, rollout_steps=50, gamma=0.97, epochs=4, entropy_end=0.0),
        replace(_TUNED_VALUE, rollout_steps=50, standardise_rewards="std", gamma=0.97),
    ),
    steps=1_000_000,
    test_every=64_000,
)

TASKS = Registry(
    "task",
    Task,
    "naht.tasks",
    {
        "bit-game": Task(
            "M agents pick bits; the team earns M when exactly one is 1",
            BitGame,
            ("bernoulli",),
            {
                "paper": _BIT_GAME_RUN,
                "released": _BIT_GAME_RUN,
                "tuned": replace(
                    _BIT_GAME_RUN,
                    learners=(_BIT_GAME_TUNED, replace(_TUNED_VALUE, num_envs=16, epsilon_steps=20_000)),
                ),
            },
        ),
        "mpe-pp": Task(
            "M predators must touch a faster prey together",
            PredatorPrey,
            _ZOO,
            {
                "paper": _MPE,
                "released": _MPE,
                "tuned": Defaults((_MPE_TUNED, _TUNED_VALUE), steps=5_000_000, test_every=128_000, test_episodes=512),
            },
        ),
        **{
            name: Task(
                f"SMAC rules, simulated: {m.allies} {m.ally}s against {m.enemies} {m.enemy}s (SMAC's {m.smac_name})",
                partial(Smac, name),
                _ZOO if name in zoo_tasks() else _SOLDIERS,
                _STALKERS if name == "3s5z" else _MARINES,
            )
            for name, m in MAPS.items()
        },
        "lbf": Task(
            "level-based foraging: M players take food that most can only lift together",
            Lbf,
            ("nearest", "alone", "follow", "together", "first"),
            {"tuned": _LBF},
        ),
    },
)


def make_env(name: str, **settings: Any) -> Environment:
    """An environment by name: `make_env("bit-game", num_agents=5)`."""
    make = TASKS[name].make
    try:
        env = make(**settings)
    except TypeError as e:
        raise NahtError(f"task {name} does not take these settings: {e}") from e
    require(env.spec.name == name, f"the environment of task '{name}' calls itself '{env.spec.name}' in its spec")
    return env


def register_task(name: str, task: Task) -> None:
    """Make a task of your own known by a name, to everything that takes one."""
    TASKS.register(name, task)
