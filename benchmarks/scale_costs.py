"""What the study's work is and costs: the graph that `naht reproduce` carries out, with the times of its records, and
what a driver, a node and a checkpoint take on this file system, measured. For scale.py."""

from __future__ import annotations

import json
import math
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

from cluster_simulation import Piece
from naht.evaluation.crossplay import PART
from naht.evaluation.play import BLOCK
from naht.runtime import usable_cores
from naht.study.engine import carry_out
from naht.study.nodes import DONE, Node, finish, is_done
from naht.study.overview import PLAYING, TYPICAL, survey
from naht.study.plan import Request, plan_of
from naht.study.rows import read_rows
from naht.study.works import NODE, Meetings, Training
from naht.tasks import TASKS as KNOWN
from naht.training.checkpoints import save_checkpoint
from naht.training.config import RunConfig
from naht.training.crew import Ended, News
from naht.training.lease import is_locked
from naht.training.progress import Event, Report
from naht.training.trainer import make_trainer

ROOT = Path(__file__).parent.parent
TASKS = ("bit-game", "mpe-pp", "5v6", "8v9", "10v11", "3s5z")
MAPS = ("5v6", "8v9", "10v11", "3s5z")
NEAREST = (*MAPS, "mpe-pp", "mpe-pp-published-prey-5M")
"""Where a guess looks for records, in this order. The last one has trained its own strangers."""
POAM = "train/poam"

# -- the study: its graph


@dataclass(frozen=True)
class Sketch:
    """A node of the real plan, without its time."""

    task: str
    name: str
    kind: str
    size: float
    needs: tuple[str, ...]
    checkpoint: float
    events: float


def sketches(tasks: Sequence[str] = TASKS) -> list[Sketch]:
    """All nodes of the studies of these tasks, one study after the other."""
    found = []
    for task in tasks:
        sizes: dict[str, tuple[float, float]] = {}
        for node in plan_of(Request(task)).nodes:
            saved = events = 0.0
            if isinstance(node.work, Training):
                config = node.work.config
                if config.algorithm_name not in sizes:
                    sizes[config.algorithm_name] = checkpoint_of(config)
                saved, events = sizes[config.algorithm_name]
            elif isinstance(node.work, Meetings):
                saved = 4.0 * PART * BLOCK * 4  # a part: four numbers of every episode
            needs = tuple(f"{task}/{need.name}" for need in node.needs)
            found.append(Sketch(task, node.name, node.work.kind, node.work.size, needs, saved, events))
    return found


def checkpoint_of(config: RunConfig) -> tuple[float, float]:
    """Bytes of a run's checkpoint, and its number of updates. Nothing is computed; whoever its teammates are matters
    little, so scripted ones take the place of those that are not trained yet."""
    if any(name.startswith(NODE) for name in config.teams.teammates):
        scripted = KNOWN[config.task.spec.name].teammates
        config = replace(config, teams=replace(config.teams, teammates=scripted))
    trainer, _ = make_trainer(config)

    def size(leaf: Any) -> int:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        return math.prod(leaf.shape) * leaf.dtype.itemsize

    state = jax.eval_shape(trainer.init, jax.random.key(0))
    return float(sum(map(size, jax.tree.leaves(state)))), float(trainer.num_updates)


# -- the study: its times


def seconds_of_records(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """(seconds, size) of all recorded nodes of a study, by name without the seed. A training that was stopped and gone
    on with has its time of all sittings in its clock."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(folder.glob("nodes/**/node.json")):
        record, clock = json.loads(path.read_text()), path.with_name("clock.csv.gz")
        seconds = record["seconds"]
        if clock.is_file() and (rows := read_rows(clock)):
            seconds = max(seconds, float(rows[-1]["seconds"] or 0))
        found.setdefault(group_of(record["name"]), []).append((seconds, record["size"]))
    return found


def group_of(name: str) -> str:
    """Nodes that differ in their seed only."""
    return re.sub(r"[-/]seed\d+$", "", name)


class Times:
    """Seconds of nodes: as recorded where they are, else guessed.

    A guess takes the node's like from the nearest study that has recorded it: there it took so much longer or shorter
    per step than training POAM, and so it does here. (A study's nodes shared a machine with the same neighbours; those
    of two studies did not.) Where POAM has no record either, it is as much faster or slower than on 5v6 as `naht
    status` supposes, from speeds that were measured on all maps alike (docs/smac.md).
    """

    def __init__(self, results: Path = ROOT / "results"):
        self.records = {study: seconds_of_records(results / study) for study in dict.fromkeys((*TASKS, *NEAREST))}
        trained = [r for s in NEAREST for name, r in self.records[s].items() if name.startswith("train/")]
        like = [records for records in trained if len(records) >= 5]
        self.spread = [seconds / median(s for s, _ in records) for records in like for seconds, _ in records]
        """How far trainings of some minutes are from the median of their like: neighbours, compiling, luck."""

    def recorded(self, study: str, name: str) -> list[tuple[float, float]]:
        """Of a node's like; a method with other strangers is the same work."""
        records, group = self.records[study], group_of(name)
        return records.get(group) or records.get(group.removesuffix("-split"), [])

    def pace(self, study: str, name: str) -> float:
        """Seconds per step, as recorded."""
        return median(seconds / size for seconds, size in self.recorded(study, name))

    def poam(self, task: str) -> float:
        """Seconds per step of POAM's trainings."""
        if self.recorded(task, POAM):
            return self.pace(task, POAM)
        return self.pace("5v6", POAM) * TYPICAL["5v6"] / TYPICAL[task]

    def against_poam(self, name: str, kind: str) -> float:
        """How many times as long as POAM's trainings a node takes per step, where that is recorded nearest."""
        for study in NEAREST:
            if self.recorded(study, name) and self.recorded(study, POAM):
                return self.pace(study, name) / self.pace(study, POAM)
        return 1.0 if kind == "training" else 1 / PLAYING

    def guess(self, task: str, name: str, kind: str, size: float) -> float:
        """The typical seconds of a node."""
        if self.recorded(task, name):
            return size * self.pace(task, name)
        return size * self.poam(task) * self.against_poam(name, kind)

    def draw(self, task: str, name: str, kind: str, size: float, rng: random.Random) -> float:
        """A node's seconds, this time."""
        if records := self.recorded(task, name):
            seconds, of = rng.choice(records)
            return seconds * size / of
        return self.guess(task, name, kind, size) * (rng.choice(self.spread) if kind == "training" else 1.0)


def pieces_of(drawn: Iterable[Sketch], times: Times, rng: random.Random | None = None) -> list[Piece]:
    """The study, with typical times or, from a generator, with times as they may turn out."""
    pieces = []
    for s in drawn:
        typical = times.guess(s.task, s.name, s.kind, s.size)
        seconds = typical if rng is None else times.draw(s.task, s.name, s.kind, s.size, rng)
        name = f"{s.task}/{s.name}"
        pieces.append(Piece(name, seconds, s.needs, s.checkpoint, s.events, expected=typical))
    return pieces


# -- what the driver and the file system cost


@dataclass(frozen=True)
class Nothing:
    """The work of a node that has none."""

    number: int
    kind = "nothing"
    size = 1

    def identity(self) -> Any:
        return {"number": self.number}

    def finish(self, place: Path, needs: Mapping[str, Path], report: Report) -> None:
        """There is nothing to do."""


class Paper:
    """A crew that has done everything at once and reports of it: what is left is the driver's own time."""

    broken = False

    def __init__(self, size: int, reports: int):
        self.size, self.reports = size, reports
        self.items: list[News] = []
        self.running = 0
        self.seconds = 0.0
        """Of its own."""

    def start(self, name: str, function: Any, root: Path, node: Node) -> None:
        del function
        began = time.process_time()
        node.place(root).mkdir(parents=True, exist_ok=True)
        (node.place(root) / DONE).write_text("{}")
        self.running += 1
        self.items += [*[Event(name, i, self.reports) for i in range(self.reports)], Ended(name)]
        self.seconds += time.process_time() - began

    def news(self, seconds: float) -> News:
        del seconds
        item = self.items.pop(0)
        self.running -= isinstance(item, Ended)
        return item

    def stop(self) -> list[News]:
        return []


def graph_of_nothing(drawn: Sequence[Sketch]) -> list[Node]:
    """The study's graph with nodes that have nothing to do."""
    made: dict[str, Node] = {}
    for number, s in enumerate(drawn):
        made[f"{s.task}/{s.name}"] = Node(f"{s.task}/{s.name}", Nothing(number), tuple(made[n] for n in s.needs))
    return list(made.values())


REPORTS = 3
"""Of each node, when the driver is measured."""


def measure_driver(drawn: Sequence[Sketch], size: int) -> dict[str, float]:
    """The real engine with a crew of so many, told as `naht reproduce` tells it without a terminal. In seconds of
    processor time, so that neighbours on the machine do not count."""
    nodes = graph_of_nothing(drawn)

    def processor_seconds(what: Callable[[], Any]) -> float:
        began = time.process_time()
        what()
        return time.process_time() - began

    def carried_out(root: Path, reports: int) -> float:
        def watch(item: Any) -> None:
            if isinstance(item, Ended):
                sum(is_done(root, node) for node in nodes)

        crew = Paper(size, reports)
        return processor_seconds(lambda: carry_out(root, nodes, crew, watch=watch)) - crew.seconds

    for node in nodes:
        _ = node.key
    with tempfile.TemporaryDirectory() as silent, tempfile.TemporaryDirectory() as talking:
        root = Path(silent)
        alone = carried_out(root, 0)
        done = processor_seconds(lambda: [is_done(root, node) for node in nodes])
        for node in nodes:
            (node.place(root) / DONE).unlink()
        locked = processor_seconds(lambda: [is_locked(node.place(root)) for node in nodes])
        surveyed = processor_seconds(lambda: survey(root, nodes))
        reported = carried_out(Path(talking), REPORTS)
    return {
        "nodes": len(nodes),
        "node_seconds": alone / len(nodes),
        "event_seconds": max(0.0, reported - alone) / (REPORTS * len(nodes)),
        "is_done_seconds": done / len(nodes),
        "is_locked_seconds": locked / len(nodes),
        "survey_seconds": surveyed,
    }


def measure_nodes(number: int = 100) -> float:
    """Seconds to finish a node that has nothing to do: folder, lock, record."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = [Node(f"nothing/{i}", Nothing(i)) for i in range(number)]
        began = time.perf_counter()
        for node in nodes:
            finish(Path(folder), node)
        return (time.perf_counter() - began) / number


def measure_writing(num_bytes: float, times: int = 3) -> dict[str, float]:
    """Seconds to write a checkpoint of this size, checksum and all, and of these the processor's own; the best of a
    few, for neighbours' sake."""
    state = {"array": np.random.default_rng(0).random(int(num_bytes) // 4, np.float32)}
    took, computed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(times):
            began, at = time.perf_counter(), time.process_time()
            save_checkpoint(Path(folder), step, state, {})
            took.append(time.perf_counter() - began)
            computed.append(time.process_time() - at)
    return {"bytes": num_bytes, "seconds": min(took), "processor_seconds": min(computed)}


def measured(drawn: Sequence[Sketch]) -> dict[str, Any]:
    """Everything that the simulation takes from this machine."""
    one = [s for s in drawn if s.task == "5v6"]
    sizes = sorted({s.checkpoint for s in drawn if s.kind == "training"})
    shown = {"smallest": sizes[0], "median": sizes[len(sizes) // 2], "largest": sizes[-1]}
    return {
        "cores": usable_cores(),
        "finish_seconds": measure_nodes(),
        "checkpoints": {name: measure_writing(size) for name, size in shown.items()},
        "driver": {"one study": measure_driver(one, 200), "all studies at once": measure_driver(drawn, 200)},
    }
