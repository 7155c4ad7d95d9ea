"""How far a study is: what is done, what runs and how fast, how long the rest takes. Read from its folder alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from naht.config import read_json
from naht.errors import NahtError
from naht.study.nodes import PROGRESS, Node, facts_of, is_done
from naht.study.works import Training
from naht.training.lease import is_locked

TYPICAL = {
    "bit-game": 20_000,
    "mpe-pp": 11_000,
    "3m": 9_000,
    "8m": 5_000,
    "5v6": 5_500,
    "8v9": 4_000,
    "10v11": 3_300,
    "3s5z": 7_500,
}
"""Rough guesses, until this machine's own speeds are known: environment steps per second of a training on one of two
busy cores."""
PLAYING = 5
"""How many times as fast it is to play as to train, likewise."""
STARTING = 8.0
"""Seconds until a node begins to do something, likewise."""


@dataclass(frozen=True)
class Survey:
    """The state of a study's nodes."""

    done: tuple[str, ...]
    running: dict[str, dict[str, Any]]
    """By name, what each said last: step, total, speed."""
    seconds: dict[str, float]
    """Estimated seconds of work that every node still needs."""
    measured: bool
    """Whether estimates rest on nodes of this study."""

    def left(self, workers: int) -> float:
        """Seconds until everything is done."""
        return sum(self.seconds.values()) / max(1, workers)


def survey(root: Path, nodes: Sequence[Node], taken_over: Iterable[str] = ()) -> Survey:
    """The state of nodes; those that will be taken over from other studies, by name, count as done."""
    done = [node for node in nodes if is_done(root, node)]
    names = {node.name for node in done} | set(taken_over)
    running: dict[str, dict[str, Any]] = {}
    for node in nodes:
        place = node.place(root)
        if node.name not in names and is_locked(place):
            try:
                running[node.name] = dict(read_json(place / PROGRESS))
            except (NahtError, ValueError, TypeError):
                running[node.name] = {}  # it has hardly begun
    rates: dict[str, list[float]] = {}
    for node in done:
        facts = facts_of(node.place(root))
        rates.setdefault(_kin(node), []).append(facts["size"] / max(facts["seconds"], 0.1))
    speeds = {kin: median(found) for kin, found in rates.items()}
    seconds = {}
    for node in nodes:
        if node.name in names:
            continue
        share = 1.0
        if (said := running.get(node.name)) and said.get("total"):
            share = 1 - said["step"] / said["total"]
        speed = speeds.get(_kin(node))
        seconds[node.name] = share * (node.work.size / speed if speed else typical_seconds(node))
    return Survey(tuple(names), running, seconds, bool(speeds))


def _kin(node: Node) -> str:
    """Nodes whose speeds are alike."""
    work = node.work
    return f"{work.kind} {work.config.algorithm_name}" if isinstance(work, Training) else work.kind


def typical_seconds(node: Node) -> float:
    """How long a node may take on a machine that nothing is known of."""
    work = node.work
    task = work.config.task if isinstance(work, Training) else getattr(work, "task", None)
    speed = TYPICAL.get(task.spec.name, 5_000) if task is not None else 5_000
    return STARTING + work.size / (speed if isinstance(work, Training) else PLAYING * speed)


def longest_ways(nodes: Sequence[Node]) -> dict[str, float]:
    """By node, seconds from its start to the end of the last one that needs it, however many work at it. `nodes` stand
    after what they need."""
    own = {node.name: typical_seconds(node) for node in nodes}
    ways = dict(own)
    for node in reversed(nodes):
        for need in node.needs:
            if need.name in own:
                ways[need.name] = max(ways[need.name], own[need.name] + ways[node.name])
    return ways


def clock(seconds: float) -> str:
    """1:05 h, 12 min, 40 s."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60}:{minutes % 60:02d} h"


def show(title: str, parts: Mapping[str, Sequence[Node]], state: Survey, workers: int) -> Group:
    """The whole study at a glance: its parts, what is running, how long it takes."""
    table = Table("part", "done", "", "left", header_style="bold", box=None)
    counted: set[str] = set()
    for name, nodes in parts.items():
        mine = {node.name for node in nodes}
        finished, new = len(mine & set(state.done)), [n for n in mine - counted if n in state.seconds]
        counted |= mine
        bar = "█" * round(12 * finished / max(1, len(mine)))
        left = sum(state.seconds[n] for n in new) / max(1, workers)
        table.add_row(name, f"{finished}/{len(mine)}", f"{bar:░<12}", clock(left) if new else "")
    lines = [Text(_said(name, facts)) for name, facts in state.running.items()]
    total = len(state.done) + len(state.seconds)
    how = "" if state.measured else " (typical speeds; none measured here yet)"
    ending = f"{len(state.done)} of {total} nodes done"
    if state.seconds:
        ending += f"; about {clock(state.left(workers))} left with {workers} at a time{how}"
    return Group(Text(title, style="bold"), table, *lines, Text(ending))


def _said(name: str, facts: dict[str, Any]) -> str:
    text = f"  {name}"
    if facts.get("total"):
        text += f": {facts['step'] / facts['total']:.0%}"
    if facts.get("speed"):
        text += f", {facts['speed']:,.0f} steps/s"
    if facts.get("test") is not None:
        text += f", test {facts['test']:.2f}"
    return text
