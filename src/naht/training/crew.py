"""Worker processes that take one call after the other, and whom a stop signal lets save what they are doing."""

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
from types import TracebackType
from typing import Any

from naht.errors import Interrupted, NahtError
from naht.runtime import configure, forget_if_full
from naht.training.progress import Event


@dataclass(frozen=True)
class Ended:
    """A call has come to an end; with an error, or well."""

    name: str
    error: NahtError | None = None


News = Event | Ended


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


class Crew:
    """Up to `size` processes, started when they are needed and ended with the `with` block.

    Functions that they are given must be importable, and take `report` besides their arguments.
    """

    def __init__(self, size: int):
        self.size = size
        self._context = multiprocessing.get_context("spawn")
        self._calls, self._news = self._context.Queue(), self._context.Queue()
        self._processes: list[Any] = []
        self._open: set[str] = set()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def running(self) -> int:
        """Calls that have not ended."""
        return len(self._open)

    def start(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        """Let the next worker that is free do `function(*args, report=...)`."""
        self._open.add(name)
        self._calls.put((name, function, args))
        if len(self._processes) < min(self.size, self.running):
            process = self._context.Process(target=_work, args=(self._calls, self._news), daemon=True)
            process.start()
            self._processes.append(process)

    def news(self, seconds: float) -> News | None:
        """The next news, or None if there are none for some seconds."""
        try:
            item: News = self._news.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(item, Ended):
            self._open.discard(item.name)
        return item

    @property
    def broken(self) -> bool:
        """Has a worker died?"""
        return any(process.exitcode is not None for process in self._processes)

    def stop(self) -> list[News]:
        """Ask everybody to save and leave, and wait for that. Returns the last news."""
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
