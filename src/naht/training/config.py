"""The settings of a run, and the named algorithms with their presets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro

from naht.agents.networks import NetworkConfig
from naht.agents.teammate_model import ModelConfig
from naht.config import MOST_ENVS, Amount, Count, Range, Seed, setting
from naht.envs.base import Environment
from naht.envs.registry import make_env, task
from naht.errors import unknown
from naht.learning.learner import AlgorithmConfig
from naht.learning.ppo import PPOConfig
from naht.learning.value_based import Mixing, ValueConfig
from naht.pieces import Pieces
from naht.teams.sampler import NumControlled, Slots

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
    slots: Slots = "random"
    """Where the controlled agents sit: in random seats, the first or the last ones."""


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


@dataclass(frozen=True)
class Algorithm:
    """A named algorithm: what it changes in a task's settings."""

    description: str
    settings: dict[str, Any]
    """Changes to the learner's settings in every preset: what makes it this algorithm."""
    learner: Literal["ppo", "value"] = "ppo"
    """Whose settings these are."""
    tuned: dict[str, Any] = field(default_factory=dict)
    """Further changes in the preset 'tuned'."""
    paper: dict[str, Any] = field(default_factory=dict)
    """Further changes in the presets 'paper' and 'released': its published hyper-parameters."""
    released: dict[str, Any] = field(default_factory=dict)
    """Further changes in 'released': how the paper's authors ran it where that differs from the paper."""
    num_controlled: NumControlled = "uniform"
    """N. 'all' is self-play, without teammates."""


_NO_MODEL = {"modelling": False}
_UCA = {"imitation": 1.0}
_SELF_PLAY = _NO_MODEL | {"uncontrolled_data": False}
_STORED = {"actor_memory": "stored", "critic_memory": "stored"}
_IQL_VDN_TUNED = {"lr": 2e-3, "bootstrap_time_limit": True}  # with the bootstrap, QMIX diverges (docs/value_based.md)


def _value_based(description: str, mixing: Mixing, **tuned: Any) -> Algorithm:
    return Algorithm(description, {"mixing": mixing}, "value", tuned, num_controlled="all")


ALGORITHMS: dict[str, Algorithm] = {
    "poam": Algorithm(
        "PPO with agent modelling, trained with N uniform on 1..M-1",
        settings={},
        released={"critic_memory": "stored"},
    ),
    "ippo-naht": Algorithm("POAM without the teammate model", settings=_NO_MODEL, released=_STORED),
    "poam-aht": Algorithm(
        "POAM trained as the only controlled agent, N = 1",
        settings={},
        released={"critic_memory": "stored"},
        num_controlled=1,
    ),
    "poam-uca": Algorithm("POAM whose actor also learns from the strangers' actions (docs/uca.md)", settings=_UCA),
    "ippo-naht-uca": Algorithm("IPPO-NAHT with UCA: the teammate model left out", settings=_NO_MODEL | _UCA),
    "ippo": Algorithm(
        "independent PPO, trained in self-play",
        settings=_SELF_PLAY,
        paper={"epochs": 4, "minibatches": 3, "value_loss": "huber"},
        released=_STORED,
        num_controlled="all",
    ),
    "mappo": Algorithm(
        "PPO with a critic on the global state, trained in self-play",
        settings=_SELF_PLAY | {"central_critic": True},
        paper={"epochs": 10, "minibatches": 1, "clip": 0.05, "clip_value": True, "value_loss": "huber"},
        released=_STORED,
        num_controlled="all",
    ),
    "iql": _value_based("independent Q-learning, trained in self-play", "none", **_IQL_VDN_TUNED),
    "vdn": _value_based("Q-learning of the sum of the agents' values, trained in self-play", "sum", **_IQL_VDN_TUNED),
    "qmix": _value_based("Q-learning of a monotonic mix of the agents' values, trained in self-play", "monotonic"),
}


@dataclass(frozen=True)
class Settings:
    """Defaults of the runs on one task."""

    ppo: PPOConfig
    value: ValueConfig
    steps: int
    test_every: int
    test_episodes: int
    devices: int | None = None
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further changes on this task, by algorithm."""


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
_BIT_GAME_RUN = Settings(_BIT_GAME, _BIT_GAME_VALUE, steps=100_000, test_every=5_000, test_episodes=128, devices=1)
_BIT_GAME_TUNED = replace(_BIT_GAME, gamma=0.9, gae_lambda=0.5, entropy_end=0.0, lr_end=1e-4)

_MPE = Settings(PPOConfig(), ValueConfig(num_envs=8), steps=20_000_000, test_every=512_000, test_episodes=512)
_MPE_TUNED = PPOConfig(
    num_envs=64,
    epochs=2,
    minibatches=8,
    lr=2e-3,
    lr_end=2e-4,
    entropy=0.01,
    entropy_end=0.001,
    bootstrap_time_limit=True,
    model_epochs=2,
    model_minibatches=8,
    model_lr=1e-3,
    decoded_teammates=2,  # all, for teams of three
)


def _smac(batch_steps: int, steps: int) -> dict[str, Settings]:
    """Presets of a map. Episodes end early, so a batch has that many steps per environment rather than one horizon; in
    'paper' they hold about the published 256 episodes. 'tuned' does not subtract the mean from rewards: rewards are
    positive, and then every step would cost, so that dying soon would beat holding out (kiting, on 3s5z)."""
    paper = Settings(
        PPOConfig(rollout_steps=batch_steps),
        ValueConfig(num_envs=8, rollout_steps=batch_steps),
        steps=20_000_000,
        test_every=512_000,
        test_episodes=512,
        changes={"mappo": {"entropy": 0.03}},
    )
    tuned = Settings(
        replace(
            _MPE_TUNED,
            rollout_steps=batch_steps,
            standardise_rewards="std",
            bootstrap_time_limit=False,
            decoded_teammates=1,
            model_lr=2e-3,  # see docs/poam.md
        ),
        replace(_TUNED_VALUE, rollout_steps=batch_steps, standardise_rewards="std"),
        steps=steps,
        test_every=128_000,
        test_episodes=256,
        changes={name: {"bootstrap_time_limit": False, "lr": 1e-3} for name in ("iql", "vdn")},  # see docs/smac.md
    )
    return {"paper": paper, "released": paper, "tuned": tuned}


_MARINES = _smac(32, 1_000_000)

PRESETS: dict[str, dict[str, Settings]] = {
    "bit-game": {
        "paper": _BIT_GAME_RUN,
        "released": _BIT_GAME_RUN,
        "tuned": replace(
            _BIT_GAME_RUN, ppo=_BIT_GAME_TUNED, value=replace(_TUNED_VALUE, num_envs=16, epsilon_steps=20_000)
        ),
    },
    "mpe-pp": {
        "paper": _MPE,
        "released": _MPE,
        "tuned": Settings(_MPE_TUNED, _TUNED_VALUE, steps=5_000_000, test_every=128_000, test_episodes=512),
    },
    **dict.fromkeys(("3m", "8m", "5v6", "8v9", "10v11"), _MARINES),
    "3s5z": _smac(64, 3_000_000),
}
"""Settings by task. `paper`: the published hyper-parameters, trained through time everywhere. `released`: the same with
the authors' stored-hidden-state training. `tuned`: what works best here."""


def run_config(
    task_name: str, algorithm_name: str, preset: Preset = "tuned", *, seed: int = 0, **env_settings: Any
) -> RunConfig:
    """The settings of a run by names; change single ones with `dataclasses.replace`."""
    env = make_env(task_name, **env_settings)
    if algorithm_name not in ALGORITHMS:
        raise unknown("algorithm", algorithm_name, ALGORITHMS)
    if preset not in PRESETS[task_name]:
        raise unknown("preset", preset, PRESETS[task_name])
    algorithm, defaults = ALGORITHMS[algorithm_name], PRESETS[task_name][preset]
    changes = algorithm.settings | (algorithm.tuned if preset == "tuned" else algorithm.paper)
    if preset == "released":
        changes |= algorithm.released
    changes |= defaults.changes.get(algorithm_name, {})
    teammates = () if algorithm.num_controlled == "all" else task(task_name).teammates
    return RunConfig(
        task=env,
        algorithm_name=algorithm_name,
        algorithm=replace(defaults.ppo if algorithm.learner == "ppo" else defaults.value, **changes),
        teams=TeamsConfig(algorithm.num_controlled, teammates),
        seed=seed,
        steps=defaults.steps,
        test_every=defaults.test_every,
        test_episodes=defaults.test_episodes,
        devices=defaults.devices,
    )
