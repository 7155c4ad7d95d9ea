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
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from operator import index
from pathlib import Path
from typing import Any, ClassVar

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
    on_host: ClassVar[bool] = True
    """Not part of compiled code: called for one block of seats after the other."""

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
        obs, avail, last_action, slot, before, chance = map(np.asarray, (*percept[:4], memory, seed))
        action, after, start = np.zeros(slot.shape, np.int32), np.array(before), chance.tolist()
        for at in np.ndindex(slot.shape):
            if avail[at].any():  # nothing is allowed in seats of others
                own = (*start, *at)
                situation = Situation(obs[at], avail[at], int(last_action[at]), int(slot[at]), before[at], own)
                with _thinking(self.name):
                    action[at], after[at] = self.call(situation)
        return action, after

    def call(self, situation: Situation) -> tuple[int, np.ndarray]:
        """One decision, checked."""
        try:
            answer = self.function(situation)
        except (Exception, SystemExit) as e:
            raise NahtError(failure(self.name, e)) from e
        action, memory = answer if isinstance(answer, tuple) else (answer, situation.memory)
        try:
            number = index(action)
        except TypeError:
            number = -1
        if not (0 <= number < len(situation.avail) and situation.avail[number]):
            allowed = np.flatnonzero(situation.avail).tolist()
            raise NahtError(f"teammate '{self.name}' chose {action!r}: allowed actions were {allowed}")
        try:
            memory = np.asarray(memory, np.float32)
        except (TypeError, ValueError) as e:
            raise NahtError(failure(self.name, e)) from e
        require(
            memory.shape == (self.memory_size,),
            f"teammate '{self.name}' returned a memory of shape {memory.shape}, expected ({self.memory_size},)",
        )
        return number, memory


def failure(name: str, e: BaseException) -> str:
    """What went wrong in a teammate's own code, in one line: the error, and where in their file."""
    reason = f"{type(e).__name__}: {' '.join(str(e).split())}".rstrip(": ")
    if isinstance(e, SyntaxError):
        return f"teammate '{name}' failed: {reason}"
    frames = traceback.extract_tb(e.__traceback__)
    own = [frame for frame in frames if Path(frame.filename) != Path(__file__) and "runpy" not in frame.filename]
    where = f" ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"teammate '{name}' failed: {reason}{where}"


def python_policy(
    name: str, function: Function, spec: EnvSpec, memory: int = 0, source: bytes | None = None
) -> PythonPolicy:
    """The policy of a function, after one call as a trial: what can't work fails before any work.

    `source` is the code that its fingerprint is of; by default the function's own.
    """
    require(callable(function), f"teammate '{name}' is {function!r}: it must be a function of a naht.Situation")
    _stoppable()
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


_at_work: dict[int, tuple[str, float]] = {}
"""By thread, the teammate that is deciding now, and since when."""


@contextmanager
def _thinking(name: str) -> Iterator[None]:
    _at_work[threading.get_ident()] = name, time.monotonic()
    try:
        yield
    finally:
        del _at_work[threading.get_ident()]


@cache
def _stoppable() -> None:
    """Let Ctrl-C end the process while a teammate hangs.

    Compiled code waits for the teammate and the main thread for compiled code, so no Python handler of a signal runs.
    But the interpreter still writes the signal to a socket, and a thread can read it there.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def watch(ours: socket.socket, _: socket.socket) -> None:
        while number := ours.recv(1):
            before = dict(_at_work)
            time.sleep(PATIENCE)
            stuck = [decision[0] for thread, decision in before.items() if _at_work.get(thread) == decision]
            if stuck and number[0] in (signal.SIGINT, signal.SIGTERM):
                print(f"naht: teammate '{stuck[0]}' does not answer: stopped without saving", file=sys.stderr)
                os._exit(128 + number[0])

    threading.Thread(target=watch, args=(ours, theirs), daemon=True).start()


PATIENCE = 3.0
"""Seconds that a teammate has left to answer after a signal to stop."""


def names_file(text: str) -> bool:
    """Does a teammate's name say that it is a function in a file, 'FILE.py:FUNCTION'?"""
    return text.rpartition(":")[0].endswith(".py")


def policy_in_file(text: str, spec: EnvSpec) -> Policy:
    """The policy that 'FILE.py:FUNCTION' names. Runs the file.

    The function's attribute `memory`, if it has one, is the size of its memory.
    """
    file, _, function = text.rpartition(":")
    require(Path(file).is_file(), f"teammate '{text}': there is no file {file}")
    try:
        there = runpy.run_path(file)
    except (Exception, SystemExit) as e:
        raise NahtError(failure(text, e)) from e
    if function not in there:
        raise NahtError(f"teammate '{text}': {file} has no function {function}")
    memory = getattr(there[function], "memory", 0)
    return python_policy(text, there[function], spec, memory, Path(file).read_bytes())
