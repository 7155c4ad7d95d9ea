"""Carries out a study: whatever is missing, several nodes at a time, by an executor that finishes one node after the
other somewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from naht.errors import Interrupted, NahtError
from naht.study.nodes import Node, finish, is_done
from naht.training.crew import Crew, Ended, News
from naht.training.folder import is_locked
from naht.training.run import stop_signals


class Executor(Protocol):
    """Finishes nodes. Ours are this process and worker processes; a cluster is another one."""

    @property
    def size(self) -> int:
        """Nodes at a time."""
        ...

    @property
    def running(self) -> int:
        """Nodes that were started and have not ended."""
        ...

    @property
    def broken(self) -> bool:
        """Has a part of it died, with what it was doing?"""
        ...

    def start(self, root: Path, node: Node) -> None:
        """Begin to do `naht.study.nodes.finish(root, node)`."""
        ...

    def news(self, seconds: float) -> News | None:
        """What happened next; None if nothing does for so long."""
        ...

    def stop(self) -> list[News]:
        """Save everything that was begun, and end. Returns the last news."""
        ...


class Cores(Crew):
    """Worker processes on this machine, which share compiled code between nodes of equal settings."""

    def start(self, root: Path, node: Node) -> None:  # type: ignore[override]
        super().start(node.name, finish, root, node)


class Here:
    """This process: one node after the other."""

    size, broken = 1, False

    def __init__(self) -> None:
        self._news: list[News] = []

    @property
    def running(self) -> int:
        return sum(isinstance(item, Ended) for item in self._news)

    def start(self, root: Path, node: Node) -> None:
        try:
            finish(root, node, self._news.append)
        except NahtError as e:
            self._news.append(Ended(node.name, e))
        else:
            self._news.append(Ended(node.name))

    def news(self, seconds: float) -> News | None:
        del seconds
        return self._news.pop(0) if self._news else None

    def stop(self) -> list[News]:
        last, self._news = self._news, []
        return last


@dataclass
class Outcome:
    """How far a study got."""

    left: list[Node] = field(default_factory=list)
    """Not done."""
    failed: dict[str, NahtError] = field(default_factory=dict)
    """By node, why it can't be done."""


Watch = Callable[[News | None], None]
"""Is told all news, and None now and then when there are none."""


def carry_out(
    root: Path,
    nodes: Sequence[Node],
    executor: Executor,
    *,
    until: float | None = None,
    watch: Watch = lambda _: None,
) -> Outcome:
    """Finish all `nodes`, which stand after what they need, as far as that goes before the time `until` (as of
    `time.monotonic`). What another process is at is waited for, not done twice. A node that fails takes along only
    what needs it. After a stop signal, everything is saved and `Interrupted` is raised.
    """
    outcome, broken = Outcome(), False
    open_nodes = {node.name: node for node in nodes if not is_done(root, node)}
    started: set[str] = set()

    def note(item: News | None) -> None:
        if isinstance(item, Ended):
            started.discard(item.name)
            node = open_nodes[item.name]
            if is_done(root, node):
                del open_nodes[item.name]
            elif item.error is not None and not is_locked(node.place(root)):
                outcome.failed[item.name] = item.error
        watch(item)

    def ready() -> list[Node]:
        waiting = [node for name, node in open_nodes.items() if name not in started and name not in outcome.failed]
        return [node for node in waiting if not any(need.name in open_nodes for need in node.needs)]

    with stop_signals() as signals:
        try:
            while not signals and not executor.broken and (until is None or time.monotonic() < until):
                for node in ready():
                    if executor.running >= executor.size:
                        break
                    if is_done(root, node):  # by another command
                        del open_nodes[node.name]
                    elif not is_locked(node.place(root)):
                        started.add(node.name)
                        executor.start(root, node)
                if not executor.running and not ready():
                    break
                note(executor.news(0.2))
                if not executor.running:  # all that is left is done elsewhere: look again soon
                    time.sleep(0.2)
            broken = executor.broken and not signals
        except Interrupted as e:  # what ran in this very process has saved itself
            signals.append(e.signal_number)
        finally:
            last = executor.stop()
        for item in last:
            note(item)
    outcome.left = [node for node in nodes if not is_done(root, node)]
    if signals:
        raise Interrupted("stopped and saved; go on with the same command", signals[0])
    if broken:
        raise NahtError(f"a worker process died; {len(outcome.left)} nodes are left: go on with the same command")
    return outcome
