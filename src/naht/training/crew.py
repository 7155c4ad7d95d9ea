"""Whoever does the work: this process, or worker processes that take one call after the other, and whom a stop signal
lets save what they are doing."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Protocol, cast

from naht.errors import Interrupted, NahtError
from naht.runtime import configure, forget_if_full
from naht.training.progress import Event

STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Ended:
    """A call has come to an end; with an error, or well."""

    name: str
    error: NahtError | None = None


News = Event | Ended


class Crew(Protocol):
    """Does calls, several at a time, here or elsewhere.

    Functions that it is given must be importable, and take `report` besides their arguments.
    """

    @property
    def size(self) -> int:
        """Calls at a time."""
        ...

    @property
    def running(self) -> int:
        """Calls that were started and have not ended."""
        ...

    @property
    def broken(self) -> bool:
        """Has a part of it died, with what it was doing?"""
        ...

    def start(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        """Let whoever is free next do `function(*args, report=...)`."""
        ...

    def news(self, seconds: float) -> News | None:
        """What happened next; None if nothing does for so long."""
        ...

    def stop(self) -> list[News]:
        """Save everything that was begun, and end. Returns the last news."""
        ...


class Here:
    """This process: one call after the other, each done when it is started."""

    size, broken = 1, False

    def __init__(self) -> None:
        self._news: list[News] = []

    @property
    def running(self) -> int:
        return sum(isinstance(item, Ended) for item in self._news)

    def start(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args, report=self._news.append)
        except NahtError as e:
            self._news.append(Ended(name, e))
        else:
            self._news.append(Ended(name))

    def news(self, seconds: float) -> News | None:
        del seconds
        return self._news.pop(0) if self._news else None

    def stop(self) -> list[News]:
        last, self._news = self._news, []
        return last


def _end_with_parent() -> None:
    """However the parent ends, this process stops as if asked to: what it trains is saved."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _work(line: Connection) -> None:
    """The life of a worker process."""
    try:
        _take_calls(line)
    finally:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)  # it is leaving already


def _take_calls(line: Connection) -> None:
    configure()
    asked: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)  # what is raised here may be swallowed, if Python was just collecting garbage, say
        sys.unraisablehook = lambda _: None  # of which it would tell at length
        sys.exit(0)

    # Whoever has something to save listens to stop signals; otherwise they end the worker.
    for number in STOPS:
        signal.signal(number, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(item: News) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more: the parent is dead
            line.send(item)

    while not asked:
        try:
            if not line.poll(1.0):
                continue
            call = line.recv()
        except (EOFError, OSError):
            break
        if call is None:
            break
        name, function, args = call
        try:
            function(*args, report=tell)
        except Interrupted:
            break
        except NahtError as e:
            tell(Ended(name, e))
        else:
            tell(Ended(name))
        forget_if_full()


@dataclass
class _Worker:
    """A worker process, as its parent sees it."""

    process: Any
    line: Connection
    """To it and from it. Each worker has its own: one that dies in the middle of a word takes nobody along."""
    name: str = ""
    """Of the call that it does; empty: none."""
    lost: bool = False
    """Has it hung up?"""


class Processes:
    """Up to `size` worker processes on this machine, started when they are needed. They share compiled code between
    calls with equal settings."""

    def __init__(self, size: int):
        self.size = size
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._waiting: deque[tuple[str, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._news: deque[News] = deque()

    @property
    def running(self) -> int:
        """Also those of which the end is known and was not told yet."""
        ended = sum(isinstance(item, Ended) for item in self._news)
        return len(self._waiting) + sum(bool(worker.name) for worker in self._workers) + ended

    def start(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        self._waiting.append((name, function, args))
        self._hand_out()

    def _hand_out(self) -> None:
        """Calls that wait go to workers that have none."""
        free = [worker for worker in self._workers if not worker.name and not worker.lost]
        while self._waiting and (free or len(self._workers) < self.size):
            worker = free.pop() if free else self._hire()
            try:
                worker.line.send(self._waiting[0])
            except OSError:
                worker.lost = True
            else:
                worker.name = self._waiting.popleft()[0]

    def _hire(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        resource_tracker.ensure_running()  # starting it unblocks signals
        # Of a Ctrl-C before it can listen, a worker hears once it can; SIGTERM may end it before it has begun anything.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def news(self, seconds: float) -> News | None:
        if not self._news:
            self._listen(seconds)
        return self._news.popleft() if self._news else None

    def _listen(self, seconds: float) -> None:
        """Take what workers say, and wait for that no longer than this."""
        by_line = {worker.line: worker for worker in self._workers if not worker.lost}
        if not by_line:
            time.sleep(seconds)
        for line in wait(list(by_line), seconds):
            worker = by_line[cast(Connection, line)]
            try:
                item: News = worker.line.recv()
            except (EOFError, OSError):
                worker.lost = True
                continue
            if isinstance(item, Ended):
                worker.name = ""
            self._news.append(item)
        self._hand_out()

    @property
    def broken(self) -> bool:
        return any(worker.lost or worker.process.exitcode is not None for worker in self._workers)

    def stop(self) -> list[News]:
        self._waiting.clear()
        for worker in self._workers:
            worker.process.terminate()
            with contextlib.suppress(OSError):  # it has hung up
                worker.line.send(None)  # whoever hears the signal too late to act on it reads this when it is done
        while any(worker.process.is_alive() for worker in self._workers):
            self._listen(0.1)  # somebody may be waiting to be heard before it ends
        while any(not worker.lost for worker in self._workers):  # what they said last
            self._listen(0.05)
        for worker in self._workers:
            worker.line.close()
        self._workers.clear()
        last = list(self._news)
        self._news.clear()
        return last
