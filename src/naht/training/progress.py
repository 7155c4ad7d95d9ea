"""What a person sees while a run trains: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from naht.terminal import terminal


@dataclass(frozen=True)
class Event:
    """News from a run."""

    run: str
    step: int
    total: int
    speed: float | None = None
    """Environment steps per second, without compilation."""
    train_return: float | None = None
    test_return: float | None = None
    action_prob: float | None = None
    """Mean probability the teammate model gives to what teammates really did."""
    message: str | None = None
    """A sentence to print on its own."""


Report = Callable[[Event], None]


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def describe(e: Event) -> str:
    """The numbers of an event in one line."""
    parts = [f"{e.step:,}/{e.total:,} steps"]
    if e.speed:
        parts.append(f"{e.speed:,.0f} steps/s")
    if e.train_return is not None:
        parts.append(f"return {e.train_return:.2f}")
    if e.test_return is not None:
        parts.append(f"test {e.test_return:.2f}")
    if e.action_prob is not None:
        parts.append(f"teammate actions {e.action_prob:.0%}")
    if e.speed:
        parts.append(f"{_clock((e.total - e.step) / e.speed)} left")
    return "  ".join(parts)


class Display:
    """Shows events of one or many runs; use it as a context manager and pass `display.show` as the report."""

    def __init__(self, console: Console | None = None, seconds_between_lines: float = 5.0):
        self.console = console or terminal(stderr=True)
        self._pause = seconds_between_lines
        self._last_line: dict[str, float] = {}
        self._bars: dict[str, TaskID] = {}
        self._progress: Progress | None = None
        if self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[facts]}"))
            self._progress = Progress(*columns, console=self.console, refresh_per_second=5)

    def __enter__(self) -> Display:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def show(self, e: Event) -> None:
        if e.message is not None:
            self.console.print(Text(f"{e.run}: {e.message}"))
        elif self._progress:
            if e.run not in self._bars:
                self._bars[e.run] = self._progress.add_task(e.run, facts="")
            bar = self._bars[e.run]
            self._progress.update(bar, total=e.total, completed=e.step, facts=describe(e))
            if e.step >= e.total:  # a finished run becomes a line above the bars of those still running
                self._progress.remove_task(self._bars.pop(e.run))
                self.console.print(Text(f"{e.run}: {describe(e)}"), soft_wrap=True)
        elif e.step >= e.total or time.monotonic() - self._last_line.get(e.run, -self._pause) >= self._pause:
            self._last_line[e.run] = time.monotonic()
            self.console.print(Text(f"{e.run}: {describe(e)}"), soft_wrap=True)
