"""Carries out a study: whatever is missing, several nodes at a time, by a crew that finishes one node after the other
somewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from naht.errors import Interrupted, NahtError
from naht.study.nodes import Node, finish, is_done
from naht.study.overview import longest_ways
from naht.training.crew import Crew, Ended, News
from naht.training.lease import is_locked
from naht.training.run import stop_signals

LARGE = 5
"""A crew of so many begins with what the end of the study waits for, which saves it a fifth of the time
(docs/scale.md). A smaller one loses nothing by going through the parts one after the other."""


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
    crew: Crew,
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
    ways = longest_ways(nodes)

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
        found = [node for node in waiting if not any(need.name in open_nodes for need in node.needs)]
        if len(found) > 1 and crew.size >= LARGE:
            found.sort(key=lambda node: -ways[node.name])
        return found

    with stop_signals() as signals:
        try:
            while not signals and not crew.broken and (until is None or time.monotonic() < until):
                for node in ready():
                    if crew.running >= crew.size:
                        break
                    if is_done(root, node):  # by another command
                        del open_nodes[node.name]
                    elif not is_locked(node.place(root)):
                        started.add(node.name)
                        crew.start(node.name, finish, root, node)
                if not crew.running and not ready():
                    break
                note(crew.news(0.2))
                if not crew.running:  # all that is left is done elsewhere: look again soon
                    time.sleep(0.2)
            broken = crew.broken and not signals
        except Interrupted as e:  # what ran in this very process has saved itself
            signals.append(e.signal_number)
        finally:
            last = crew.stop()
        for item in last:
            note(item)
    outcome.left = [node for node in nodes if not is_done(root, node)]
    if signals:
        raise Interrupted("stopped and saved; go on with the same command", signals[0])
    if broken:
        raise NahtError(f"a worker process died; {len(outcome.left)} nodes are left: go on with the same command")
    return outcome
