"""The contract of a learning algorithm: settings, and the learner that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from naht.agents.policy import Policy
from naht.envs.base import Array, EnvSpec, PyTree
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


@dataclass(frozen=True)
class Circumstances:
    """What a learner may want to know of the run that it is made for."""

    devices: int = 1
    """That share every batch; what all must agree on is added up with `naht.devices.total`."""
    pieces: Pieces = CACHE
    """How much to compute at once."""
    share: float = 1.0
    """Of the seats, how many are expected to be controlled."""
    strangers: int = 0
    """Members of U."""


ALONE = Circumstances()
"""One device, self-play."""


@runtime_checkable
class LearnerSettings(Protocol):
    """The settings of an algorithm: a frozen dataclass, decorated with `@naht.setting`, that makes its learner."""

    @property
    def num_envs(self) -> int:
        """Environments per batch."""
        ...

    def learner(self, spec: EnvSpec, around: Circumstances = ...) -> Learner:
        """The learner with these settings on a task of these sizes. Impossible settings fail here."""
        ...
