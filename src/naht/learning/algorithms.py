"""The algorithms by name. Adding one is an entry here and its settings beside, or a package of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from naht.learning.learner import LearnerSettings
from naht.learning.ppo import PPOConfig
from naht.learning.value_based import Mixing, ValueConfig
from naht.plugins import Registry
from naht.teams.sampler import NumControlled

Changes = Mapping[str, Any]
"""Settings that differ, by the names of their fields."""


@dataclass(frozen=True)
class Algorithm:
    """A named algorithm: a learner, and what it changes in that learner's settings."""

    description: str
    settings: type[LearnerSettings]
    """The class of its settings, which makes its learner."""
    identity: Changes = field(default_factory=dict)
    """Changes in every preset: what makes it this algorithm."""
    presets: Mapping[str, Changes] = field(default_factory=dict)
    """Further changes by preset, on every task."""
    tasks: Mapping[str, Mapping[str, Changes]] = field(default_factory=dict)
    """Further changes by task and preset."""
    num_controlled: NumControlled = "uniform"
    """N. 'all' is self-play, without teammates."""

    def changes(self, task_name: str, preset: str) -> dict[str, Any]:
        """All that it changes in a preset of a task."""
        here = self.tasks.get(task_name, {})
        return {**self.identity, **self.presets.get(preset, {}), **here.get(preset, {})}


_NO_MODEL = {"modelling": False}
_UCA = {"imitation": 1.0}
_SELF_PLAY = _NO_MODEL | {"uncontrolled_data": False}
_STORED = {"actor_memory": "stored", "critic_memory": "stored"}
_POAM_PRESETS = {"released": {"critic_memory": "stored"}}
_IQL_VDN_TUNED = {"lr": 2e-3, "bootstrap_time_limit": True}  # with the bootstrap, QMIX diverges (docs/value_based.md)


def _published(**changes: Any) -> dict[str, Changes]:
    """Hyper-parameters of the paper; its authors trained from stored states besides."""
    return {"paper": changes, "released": changes | _STORED}


def _value_based(description: str, mixing: Mixing, **tuned: Any) -> Algorithm:
    return Algorithm(description, ValueConfig, {"mixing": mixing}, {"tuned": tuned}, num_controlled="all")


ALGORITHMS = Registry(
    "algorithm",
    Algorithm,
    "naht.algorithms",
    {
        "poam": Algorithm(
            "PPO with agent modelling, trained with N uniform on 1..M-1", PPOConfig, presets=_POAM_PRESETS
        ),
        "ippo-naht": Algorithm("POAM without the teammate model", PPOConfig, _NO_MODEL, {"released": _STORED}),
        "poam-aht": Algorithm(
            "POAM trained as the only controlled agent, N = 1", PPOConfig, presets=_POAM_PRESETS, num_controlled=1
        ),
        "poam-uca": Algorithm(
            "POAM whose actor also learns from the strangers' actions (docs/uca.md)", PPOConfig, _UCA
        ),
        "ippo-naht-uca": Algorithm("IPPO-NAHT with UCA: the teammate model left out", PPOConfig, _NO_MODEL | _UCA),
        "ippo": Algorithm(
            "independent PPO, trained in self-play",
            PPOConfig,
            _SELF_PLAY,
            _published(epochs=4, minibatches=3, value_loss="huber"),
            num_controlled="all",
        ),
        "mappo": Algorithm(
            "PPO with a critic on the global state, trained in self-play",
            PPOConfig,
            _SELF_PLAY | {"central_critic": True},
            _published(epochs=10, minibatches=1, clip=0.05, clip_value=True, value_loss="huber"),
            num_controlled="all",
        ),
        "iql": _value_based("independent Q-learning, trained in self-play", "none", **_IQL_VDN_TUNED),
        "vdn": _value_based(
            "Q-learning of the sum of the agents' values, trained in self-play", "sum", **_IQL_VDN_TUNED
        ),
        "qmix": _value_based("Q-learning of a monotonic mix of the agents' values, trained in self-play", "monotonic"),
    },
)


def self_play_algorithms() -> tuple[str, ...]:
    """The algorithms that need no teammates, and so can make them."""
    return tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.num_controlled == "all")


def register_algorithm(name: str, algorithm: Algorithm) -> None:
    """Make an algorithm of your own known by a name, to everything that takes one."""
    ALGORITHMS.register(name, algorithm)
