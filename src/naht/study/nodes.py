"""A study as a graph: every node is one piece of work, in a place that is named after all that determines its result.

A place is `nodes/<name>/<key>/` in the study's folder. The key is a hash of the work's settings, of the files that it
reads and of the keys of what it needs, so that a changed setting gives the nodes that depend on it new places and
leaves all others done. A node is done when its place has a `node.json`, which is written last.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from naht.config import read_json
from naht.errors import NahtError
from naht.storage import remove_unfinished, write_file
from naht.training.lease import only_process
from naht.training.progress import Event, Report
from naht.version import __version__

DONE = "node.json"
PROGRESS = "progress.json"
EDITION = 1
"""Counted up when new code gives other results from equal settings: everything is then done anew."""


class Work(Protocol):
    """What a node does. Equal work on equal files gives equal products."""

    @property
    def kind(self) -> str:
        """In one word, for tables: training, evaluation, ..."""
        ...

    @property
    def size(self) -> int:
        """How much there is to do, in environment steps."""
        ...

    def identity(self) -> Any:
        """JSON: everything that determines the result, besides what is needed."""
        ...

    def finish(self, place: Path, needs: Mapping[str, Path], report: Report) -> None:
        """Do what is missing in `place`, which may hold the beginning of it. `needs` are the places of needed nodes."""
        ...


@dataclass(frozen=True)
class Node:
    """A piece of work and what must be done before it."""

    name: str
    """Unique in its study, and a path: 'train/poam/seed0'."""
    work: Work
    needs: tuple[Node, ...] = ()

    @cached_property
    def key(self) -> str:
        """Another one whenever the result may be another."""
        text = json.dumps([EDITION, self.work.identity(), {n.name: n.key for n in self.needs}], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def place(self, root: Path) -> Path:
        return root / "nodes" / self.name / self.key


def in_order(wanted: Iterable[Node]) -> list[Node]:
    """These nodes and all they need, each once and after what it needs."""
    found: dict[str, Node] = {}

    def visit(node: Node) -> None:
        if node.name not in found:
            for need in node.needs:
                visit(need)
            found[node.name] = node

    for node in wanted:
        visit(node)
    return list(found.values())


def is_done(root: Path, node: Node) -> bool:
    return (node.place(root) / DONE).is_file()


def facts_of(place: Path) -> dict[str, Any]:
    """What the record of a finished node says."""
    facts = read_json(place / DONE)
    if not isinstance(facts, dict):
        raise NahtError(f"{place / DONE} is no record of a node")
    return facts


def finish(root: Path, node: Node, report: Report = lambda _: None) -> None:
    """Finish a node whose needs are done: the one thing that a crew does for a study, on whatever machine.

    A node that is done is left alone; one that another process is at is a `NahtError`.
    """
    try:
        _finish(root, node, report)
    except OSError as e:
        where = node.place(root)
        raise NahtError(f"can't work in {where} ({e.strerror}): mend that, and go on with the same command") from e


def _finish(root: Path, node: Node, report: Report) -> None:
    place = node.place(root)
    place.mkdir(parents=True, exist_ok=True)
    if is_done(root, node):
        return
    for need in node.needs:
        if not is_done(root, need):
            raise NahtError(f"{node.name} needs {need.name}, which is not done")
    with only_process(place, same_version=True):
        if is_done(root, node):  # by another process, a moment ago
            return
        remove_unfinished(place)
        began, told = time.monotonic(), 0.0

        def tell(event: Event) -> None:
            nonlocal told
            if event.message is None and time.monotonic() - told >= 1:
                told = time.monotonic()
                facts = {"step": event.step, "total": event.total, "speed": event.speed, "test": event.test_return}
                write_file(place / PROGRESS, json.dumps(facts).encode())
            report(Event(**{**vars(event), "run": node.name}))

        node.work.finish(place, {need.name: need.place(root) for need in node.needs}, tell)
        (place / PROGRESS).unlink(missing_ok=True)
        record = {
            "name": node.name,
            "key": node.key,
            "kind": node.work.kind,
            "size": node.work.size,
            "seconds": round(time.monotonic() - began, 2),
            "finished": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            "naht": __version__,
            "identity": node.work.identity(),
            "needs": {need.name: need.key for need in node.needs},
        }
        write_file(place / DONE, (json.dumps(record, indent=1) + "\n").encode())
