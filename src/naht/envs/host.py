"""Worlds outside of JAX: written in Python or C++, or a game. Several processes run them side by side.

Such a world can't be copied, rewound or saved: all it can do is begin an episode from a seed and go on. So a resumed
run begins the episodes again that were in flight.
"""

from __future__ import annotations

import atexit
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Literal

import jax
import numpy as np

from naht.envs.base import Array, EnvSpec, HostEnvironment, TimeStep
from naht.errors import NahtError, one_line, require
from naht.runtime import usable_cores


class WorldLost(NahtError):
    """A world has ended without being asked to. What was learned until then is kept."""


def like(spec: EnvSpec, metrics: Sequence[str] = ()) -> TimeStep:
    """A time step of these sizes, of zeros: shapes and types that every time step of a world must have."""
    m = spec.num_agents
    shown: dict[str, Any] = {
        "obs": np.zeros((m, spec.obs_size), np.float32),
        "global_state": np.zeros(spec.state_size, np.float32),
        "avail": np.zeros((m, spec.num_actions), bool),
        "alive": np.zeros(m, bool),
        "reward": np.float32(0),
        "terminated": np.bool_(False),
        "truncated": np.bool_(False),
        "metrics": {name: np.float32(0) for name in metrics},
    }
    return TimeStep(**shown)


def checked(env: HostEnvironment, shown: TimeStep) -> TimeStep:
    """A world's time step as arrays of the promised sizes and types, or one sentence about what is wrong with it."""
    name = env.spec.name
    arrays: dict[str, Any] = {}
    for part, expected in like(env.spec)._asdict().items():
        if part == "metrics":
            arrays[part] = {key: np.float32(value) for key, value in sorted(shown.metrics.items())}
            continue
        try:
            value = np.asarray(getattr(shown, part), expected.dtype)
        except (TypeError, ValueError) as e:
            raise NahtError(f"'{name}' gave {part} that is not an array of {expected.dtype}: {one_line(e)}") from e
        require(value.shape == expected.shape, f"'{name}' gave {part} of shape {value.shape}, not {expected.shape}")
        require(expected.dtype == bool or bool(np.isfinite(value).all()), f"'{name}' gave {part} that is not finite")
        arrays[part] = value
    require(bool(arrays["avail"].any(-1).all()), f"'{name}' leaves an agent without any allowed action")
    return TimeStep(**arrays)


def stacked(shown: Sequence[TimeStep]) -> TimeStep:
    """Time steps of B worlds as one, leaves [B, ...]."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *shown)


class _Share:
    """Some of the worlds, one after the other, in the process that they run in."""

    def __init__(self, env: HostEnvironment, count: int):
        self.env = env
        self.worlds = [env.open() for _ in range(count)]
        self.shown: list[TimeStep | None] = [None] * count

    def reset(self, which: Sequence[int], seeds: Sequence[int]) -> TimeStep:
        """Worlds `which` begin an episode. Returns what all of the share show."""
        for i, seed in zip(which, seeds, strict=True):
            self.shown[i] = checked(self.env, self.worlds[i].reset(seed))
        return self._all()

    def step(self, actions: np.ndarray) -> TimeStep:
        """actions [b, M]"""
        self.shown = [checked(self.env, world.step(a)) for world, a in zip(self.worlds, actions, strict=True)]
        return self._all()

    def _all(self) -> TimeStep:
        return stacked([shown for shown in self.shown if shown is not None])

    def close(self) -> None:
        for world in self.worlds:
            world.close()


def _said(env: HostEnvironment, e: Exception) -> str:
    """What went wrong in a world, in one line."""
    whose = "" if isinstance(e, NahtError) else f"a world of '{env.spec.name}' failed: {type(e).__name__}: "
    return f"{whose}{one_line(e)}"


def _serve(pipe: Connection, env: HostEnvironment, count: int) -> None:
    """The life of a process that runs worlds: calls come in, answers or errors go out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then closes its worlds
    share: _Share | None = None
    try:
        share = _Share(env, count)
        pipe.send((True, None))
        while (call := pipe.recv()) is not None:
            method, args = call
            pipe.send((True, getattr(share, method)(*args)))
    except (EOFError, BrokenPipeError):  # the run is gone
        pass
    except Exception as e:
        with suppress(OSError):
            pipe.send((False, _said(env, e)))
    finally:
        if share is not None:
            share.close()


class HostWorlds:
    """A batch of B worlds, shared out among processes; a single one runs in this process."""

    def __init__(self, env: HostEnvironment, count: int, processes: int | None = None):
        self.env, self.count = env, count
        self.seeds = np.zeros(count, np.uint32)
        """Of the running episodes."""
        self.steps = np.full(count, -1)
        """Taken in the running episodes; -1: none has begun."""
        wanted = min(count, processes or usable_cores())
        self.bounds = [round(i * count / wanted) for i in range(wanted + 1)]
        self.here: _Share | None = None
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        atexit.register(self.close)
        if count == 1:
            self.here = self._told(_Share, env, 1)
            return
        context = multiprocessing.get_context("spawn")
        for size in np.diff(self.bounds):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, env, int(size)), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self.pipes.append(ours)
            self.processes.append(process)
        self._answers()

    def _told(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a world in this process answers."""
        try:
            return function(*args)
        except Exception as e:
            self.close()
            raise WorldLost(_said(self.env, e)) from e

    def _answers(self) -> list[Any]:
        """What the processes answer."""
        answers = []
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            try:
                good, answer = pipe.recv()
            except (EOFError, OSError) as e:
                process.join(1)
                self.close()
                name, code = self.env.spec.name, process.exitcode
                raise WorldLost(f"a process that runs worlds of '{name}' has ended (exit code {code})") from e
            if not good:
                self.close()
                raise WorldLost(answer)
            answers.append(answer)
        return answers

    def _call(self, method: str, arguments: Callable[[int, int], tuple[Any, ...]]) -> TimeStep:
        """Every process does its part at the same time; arguments(from world, to world)."""
        require(self.open, f"worlds of '{self.env.spec.name}' are closed")
        if self.here:
            return self._told(getattr(self.here, method), *arguments(0, self.count))
        for pipe, low, high in zip(self.pipes, self.bounds, self.bounds[1:], strict=False):
            with suppress(OSError):  # it is gone, which its answer will show
                pipe.send((method, arguments(low, high)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *self._answers())

    def reset(self, over: np.ndarray, seeds: np.ndarray) -> TimeStep:
        """Episodes begin from `seeds` [B] where `over` [B]. Returns what all worlds show, [B, ...]."""
        self.seeds, self.steps = np.where(over, seeds, self.seeds), np.where(over, 0, self.steps)

        def arguments(low: int, high: int) -> tuple[Any, ...]:
            which = np.flatnonzero(over[low:high])
            return which.tolist(), seeds[low:high][which].tolist()

        return self._call("reset", arguments)

    def step(self, actions: np.ndarray) -> TimeStep:
        """actions [B, M] int32. Returns what all worlds show, [B, ...]."""
        self.steps = self.steps + 1
        return self._call("step", lambda low, high: (actions[low:high],))

    def picture(self) -> np.ndarray | tuple[()]:
        """Of a single world, if it gives one: [1, H, W, 3] uint8."""
        draw = getattr(self.here and self.here.worlds[0], "picture", None)
        shown = self._told(draw) if draw else None
        return () if shown is None else np.asarray(shown, np.uint8)[None]

    @property
    def open(self) -> bool:
        return bool(self.pipes) or self.here is not None

    def close(self) -> None:
        """End all worlds and their processes."""
        atexit.unregister(self.close)
        here, self.here = self.here, None
        if here is not None:
            here.close()
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
            pipe.close()
        for process in self.processes:
            process.join(5)
            process.kill()
        self.pipes, self.processes = [], []


Use = Literal["training", "playing"]
"""Episodes of training stay where they are while others are played in between."""

_running: dict[tuple[HostEnvironment, int, Use], HostWorlds] = {}


def open_worlds(env: HostEnvironment, count: int, use: Use = "playing") -> HostWorlds:
    """The process's worlds of a task for a use: starting them can take long, so they stay open until others are wanted
    for that use, or the process ends."""
    wanted = env, count, use
    for key in [key for key in _running if key[2] == use and (key != wanted or not _running[key].open)]:
        _running.pop(key).close()
    if wanted not in _running:
        _running[wanted] = HostWorlds(env, count)
    return _running[wanted]


def close_worlds() -> None:
    """End all worlds that this process has open."""
    while _running:
        _running.popitem()[1].close()


def seeds_of(keys: Array) -> Array:
    """Seeds [B] uint32 of episodes, from random keys [B]."""
    return jax.vmap(lambda key: jax.random.bits(key, (), np.uint32))(keys)
