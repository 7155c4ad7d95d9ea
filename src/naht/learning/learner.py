"""The contract of a learning algorithm, and the table that finds one for its settings."""

from __future__ import annotations

from typing import Protocol

from naht.agents.policy import Policy
from naht.envs.base import Array, EnvSpec, PyTree
from naht.errors import NahtError
from naht.learning.ppo import PPO, PPOConfig
from naht.learning.value_based import ValueBased, ValueConfig
from naht.pieces import CACHE, Pieces
from naht.rollout import Trajectory


class Learner(Protocol):
    """How C improves. A frozen dataclass; everything that changes is in the state it passes along."""

    @property
    def policy(self) -> Policy: ...

    @property
    def num_envs(self) -> int:
        """Environments per batch."""
        ...

    @property
    def rollout_steps(self) -> int:
        """Steps per environment and batch."""
        ...

    @property
    def layout(self) -> PyTree:
        """Which parts of the state all devices share and which are cut along the environments (see `naht.devices`)."""
        ...

    def init(self, key: Array) -> PyTree:
        """The state at the start of a run. Called outside compiled code, so that NumPy may draw it."""
        ...

    def init_experience(self) -> PyTree:
        """What is kept of past batches, empty: leaves [K, ...], shared out among devices along K; () for nothing."""
        ...

    def policy_params(self, state: PyTree) -> PyTree:
        """What the policy needs to act."""
        ...

    def decoder_params(self, state: PyTree) -> PyTree:
        """Of a teammate model, what an agent's file keeps besides; empty without one."""
        ...

    def update(
        self, state: PyTree, experience: PyTree, trajectory: Trajectory, key: Array, progress: Array
    ) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Learn from one batch; progress [] in 0..1 is the fraction of the run that has passed.

        Where the batch goes in `experience` may depend on the state only: repeating an update repeats its writes.
        """
        ...


AlgorithmConfig = PPOConfig | ValueConfig
"""The settings of any algorithm."""


def make_learner(
    spec: EnvSpec,
    config: AlgorithmConfig,
    devices: int = 1,
    pieces: Pieces = CACHE,
    share: float = 1.0,
    strangers: int = 0,
) -> Learner:
    """The learner that these settings are for; `share` of the seats are expected to be controlled, the others by one of
    so many `strangers`."""
    if isinstance(config, PPOConfig):
        return PPO(spec, config, devices, pieces, share, strangers)
    if isinstance(config, ValueConfig):
        return ValueBased(spec, config, devices, pieces)
    raise NahtError(f"no learner takes settings of type {type(config).__name__}")
