"""What crews of many machines have in common: calls that wait, calls that are out, and those that are sent again."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from naht.clusters.call import Call, Home
from naht.errors import NahtError
from naht.training.crew import Ended, News
from naht.training.progress import Event

BEFORE_AGAIN = 2.0
"""Seconds until work is sent again whose process died: a machine needs a moment to notice."""
SAVING = 120.0
"""Seconds that running calls have to save what they do, when everything stops."""


@dataclass
class Ticket:
    """A call and what became of it so far."""

    call: Call
    due: float = 0.0
    """Not to be sent before this time (as of `time.monotonic`)."""
    deaths: int = field(default=0)


class Queueing(ABC):
    """A crew whose calls are sent to a cluster. Whoever makes one of it says how to send, to look and to recall."""

    broken = False
    """What dies is sent again; what dies too often ends with an error."""
    kind = "cluster"

    def __init__(self, home: Home, *, retries: int, most: int | None):
        self._home, self._retries = home, retries
        self._most: float = most or math.inf
        self._waiting: deque[Ticket] = deque()
        self._out: dict[Any, Ticket] = {}
        self._news: deque[News] = deque()
        self._stopped = False

    @property
    def running(self) -> int:
        """Also those of which the end is known here and was not told yet."""
        return len(self._waiting) + len(self._out) + sum(isinstance(item, Ended) for item in self._news)

    def start(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        self._waiting.append(Ticket(Call.of(name, self._home, function, args)))
        self._send_waiting()

    def news(self, seconds: float) -> News | None:
        until = time.monotonic() + seconds
        while not self._news and (left := until - time.monotonic()) > 0:
            self._send_waiting()
            self._look(left)
        return self._news.popleft() if self._news else None

    def stop(self) -> list[News]:
        if not self._stopped:
            self._stopped = True
            self._waiting.clear()
            try:
                self._recall()
                until = time.monotonic() + SAVING
                while self._out and time.monotonic() < until:
                    self._look(0.2)
            finally:
                self._leave()
        last = list(self._news)
        self._news.clear()
        return last

    def _send_waiting(self) -> None:
        now = time.monotonic()
        for ticket in [t for t in self._waiting if t.due <= now]:
            if len(self._out) >= self._most:
                break
            self._waiting.remove(ticket)
            self._out[self._send(ticket.call)] = ticket

    def _came_back(self, handle: Any, error: NahtError | None) -> None:
        """A call has ended by itself."""
        self._news.append(Ended(self._out.pop(handle).call.name, error))

    def _died(self, handle: Any, how: str) -> None:
        """A call was ended by somebody else: send it again, some times."""
        ticket = self._out.pop(handle)
        if self._stopped:  # as it was asked to
            return
        name, ticket.deaths = ticket.call.name, ticket.deaths + 1
        if ticket.deaths > self._retries:
            said = NahtError(f"{how}, for the {ticket.deaths}. time: not tried again; go on with the same command")
            self._news.append(Ended(name, said))
            return
        again = f"{name}: {how}; tried again ({ticket.deaths} of {self._retries})"
        self._say(again)
        ticket.due = time.monotonic() + BEFORE_AGAIN
        self._waiting.append(ticket)

    def _say(self, sentence: str) -> None:
        self._news.append(Event(self.kind, 0, 0, message=sentence))

    @abstractmethod
    def _send(self, call: Call) -> Any:
        """Send a call; returns what it is known by while it is out."""

    @abstractmethod
    def _look(self, seconds: float) -> None:
        """See what has happened, and wait for something no longer than this."""

    @abstractmethod
    def _recall(self) -> None:
        """Ask all calls that are out to save what they do and end."""

    @abstractmethod
    def _leave(self) -> None:
        """End those that have not, and leave the cluster."""
