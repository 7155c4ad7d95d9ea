"""Teammates written as plain Python functions.

    def follow(s: naht.Situation) -> int:
        "Goes where the prey is."
        ...

    naht.register_teammate("follow", follow, task="mpe-pp")

From the command line, a function in a file is a teammate without registration: `--teams.teammates bots.py:follow`.
"""

from __future__ import annotations

import hashlib
import inspect
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.policy import Percept, Policy
from naht.envs.base import Array, EnvSpec
from naht.errors import NahtError, require


@dataclass(frozen=True)
class Situation:
    """What a function sees when it has to act for one seat."""

    obs: np.ndarray
    """[O] float32"""
    avail: np.ndarray
    """[A] bool, the allowed actions"""
    last_action: int
    """Its own previous action; -1 at the start of an episode."""
    slot: int
    """Its seat, 0..M-1."""
    memory: np.ndarray
    """[K] float32, what it returned at the previous step; zeros at the start of an episode."""
    seed: tuple[int, ...]
    """What `rng` starts from: another one for every seat and step."""

    @cached_property
    def rng(self) -> np.random.Generator:
        """For chance. Others, or state outside of `memory`, would make runs differ from one time to the next.

        Made when it is asked for: that takes longer than most functions do.
        """
        return np.random.default_rng(self.seed)


Function = Callable[[Situation], Any]
"""Returns an action, or an action and the memory for the next step."""


@dataclass(frozen=True)
class PythonPolicy:
    """Calls a Python function for every seat: any code can play, at the speed of Python."""

    name: str
    function: Function
    spec: EnvSpec
    memory_size: int = 0
    fingerprint: str = field(default="", compare=False)
    """A hash of the code, so that a run does not go on with another one unnoticed."""

    def init(self, key: Array) -> tuple[()]:
        del key
        return ()

    def initial_memory(self, batch: tuple[int, ...]) -> Array:
        return jnp.zeros((*batch, self.memory_size))

    def act(
        self, params: tuple[()], memory: Array, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, Array, Array]:
        del params, greedy
        batch = percept.slot.shape
        like = jax.eval_shape(lambda: (jnp.zeros(batch, jnp.int32), self.initial_memory(batch)))
        action, memory = jax.pure_callback(self._act_for_all, like, percept, memory, jax.random.key_data(key))
        return action, memory, jnp.zeros(batch)

    def _act_for_all(self, percept: Percept, memory: Array, seed: Array) -> tuple[np.ndarray, np.ndarray]:
        """Seat after seat, outside of compiled code."""
        obs, avail, last_action, slot, before, chance = map(np.asarray, (*percept, memory, seed))
        action, after, start = np.zeros(slot.shape, np.int32), np.array(before), chance.tolist()
        for at in np.ndindex(slot.shape):
            if avail[at].any():  # nothing is allowed in seats of others
                own = (*start, *at)
                situation = Situation(obs[at], avail[at], int(last_action[at]), int(slot[at]), before[at], own)
                action[at], after[at] = self.call(situation)
        return action, after

    def call(self, situation: Situation) -> tuple[int, np.ndarray]:
        """One decision, checked."""
        answer = self.function(situation)
        action, memory = answer if isinstance(answer, tuple) else (answer, situation.memory)
        try:
            number = index(action)
        except TypeError:
            number = -1
        if not (0 <= number < len(situation.avail) and situation.avail[number]):
            allowed = np.flatnonzero(situation.avail).tolist()
            raise NahtError(f"teammate '{self.name}' chose {action!r}: allowed actions were {allowed}")
        memory = np.asarray(memory, np.float32)
        require(
            memory.shape == (self.memory_size,),
            f"teammate '{self.name}' returned a memory of shape {memory.shape}, expected ({self.memory_size},)",
        )
        return number, memory


def python_policy(
    name: str, function: Function, spec: EnvSpec, memory: int = 0, source: bytes | None = None
) -> PythonPolicy:
    """The policy of a function, after one call as a trial: what can't work fails before any work.

    `source` is the code that its fingerprint is of; by default the function's own.
    """
    require(callable(function), f"teammate '{name}' is {function!r}: it must be a function of a naht.Situation")
    code = hashlib.sha256(source or _source(function)).hexdigest()
    policy = PythonPolicy(name, function, spec, memory, code)
    nothing = np.zeros(spec.obs_size, np.float32)
    every = np.ones(spec.num_actions, bool)
    policy.call(Situation(nothing, every, -1, 0, np.zeros(memory, np.float32), (0,)))
    return policy


def _source(function: Function) -> bytes:
    """A function's code as text; what has none (built-in, or typed at a prompt) goes by its name."""
    try:
        return inspect.getsource(function).encode()
    except (OSError, TypeError):
        return getattr(function, "__qualname__", type(function).__qualname__).encode()


def policy_in_file(text: str, spec: EnvSpec) -> Policy | None:
    """The policy that 'FILE.py:FUNCTION' names; None for any other text. Runs the file.

    The function's attribute `memory`, if it has one, is the size of its memory.
    """
    file, _, function = text.rpartition(":")
    if not file.endswith(".py"):
        return None
    require(Path(file).is_file(), f"teammate '{text}': there is no file {file}")
    there = runpy.run_path(file)
    if function not in there:
        raise NahtError(f"teammate '{text}': {file} has no function {function}")
    memory = getattr(there[function], "memory", 0)
    return python_policy(text, there[function], spec, memory, Path(file).read_bytes())
