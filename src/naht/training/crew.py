"""Whoever does the work: this process, or worker processes that take one call after the other, and whom a stop signal
lets save what they are doing."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Protocol

from naht.errors import Interrupted, NahtError
from naht.runtime import configure, forget_if_full
from naht.training.progress import Event


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


def _work(calls: Any, news: Any) -> None:
    """The life of a worker process."""
    configure()
    # Whoever has something to save listens to stop signals; otherwise they end the worker, news sent to the end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while (call := calls.get()) is not None:
        name, function, args = call
        try:
            function(*args, report=news.put)
        except Interrupted:
            break
        except NahtError as e:
            news.put(Ended(name, e))
        else:
            news.put(Ended(name))
        forget_if_full()


class Processes:
    """Up to `size` worker processes on this machine, started when they are needed. They share compiled code between
    calls with equal settings."""

    def __init__(self, size: int):
        self.size = size
        self._context = multiprocessing.get_context("spawn")
        self._calls, self._news = self._context.Queue(), self._context.Queue()
        self._processes: list[Any] = []
        self._open: set[str] = set()

    @property
    def running(self) -> int:
        return len(self._open)

    def start(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        self._open.add(name)
        self._calls.put((name, function, args))
        if len(self._processes) < min(self.size, self.running):
            process = self._context.Process(target=_work, args=(self._calls, self._news), daemon=True)
            process.start()
            self._processes.append(process)

    def news(self, seconds: float) -> News | None:
        try:
            item: News = self._news.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(item, Ended):
            self._open.discard(item.name)
        return item

    @property
    def broken(self) -> bool:
        return any(process.exitcode is not None for process in self._processes)

    def stop(self) -> list[News]:
        for process in self._processes:
            process.terminate()
        last: list[News] = []
        # A queue must be emptied before those who write to it can end.
        while any(process.is_alive() for process in self._processes):
            if (item := self.news(0.1)) is not None:
                last.append(item)
        while (item := self.news(0.05)) is not None:
            last.append(item)
        self._processes.clear()
        return last
