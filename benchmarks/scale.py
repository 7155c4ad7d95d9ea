"""How long does the whole study take on many machines that fail? A simulation of its real graph with measured times.

    python benchmarks/scale.py --measure docs/results/scale_measured.json
    python benchmarks/scale.py --figure docs/scale.png --table docs/results/scale.csv

The first command measures what a driver, a checkpoint and a node cost on this file system; the second simulates the six
studies with these numbers, on more and more machines and with more and more failures. What follows: docs/scale.md.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import io
import json
import math
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
TASKS = ("bit-game", "mpe-pp", "5v6", "8v9", "10v11", "3s5z")
MACHINES = (1, 2, 4, 10, 20, 50, 100, 200)
HOURS = (math.inf, 100.0, 10.0, 1.0)
"""Mean times between the failures of a machine."""
MEASURED = ROOT / "docs/results/scale_measured.json"

# -- what is simulated


@dataclass(frozen=True)
class Piece:
    """A node as a scheduler sees it."""

    name: str
    seconds: float
    """Of work, on one core."""
    needs: tuple[str, ...] = ()
    checkpoint: float = 0.0
    """Bytes that it saves on its way; 0: it saves nothing, and whoever goes on begins anew."""
    events: float = 0.0
    """Reports of progress that its driver hears, altogether."""
    expected: float | None = None
    """Seconds as a scheduler would guess them; None: as they are."""


@dataclass(frozen=True)
class Cluster:
    """Who does the work."""

    machines: int = 1
    cores: int = 2
    mtbf: float = math.inf
    """Hours between failures of a machine, on average (exponential)."""
    repair: float = 300.0
    """Seconds until a failed machine is back."""
    lease: float = 60.0
    """Seconds until somebody else may take over what a failed machine was doing."""
    interval: float = 60.0
    """Seconds between checkpoints."""
    restart: float = 8.0
    """Seconds until a node that is taken over begins to work."""
    disk: float = math.inf
    """Bytes per second that all machines together can write."""
    byte_seconds: float = 0.0
    """Of a core, to make a byte of a checkpoint ready: copies and a checksum."""
    node_seconds: float = 0.0
    """Of the driver, to start a node and to judge its end."""
    event_seconds: float = 0.0
    """Of the driver, to hear that a node goes on."""
    order: str = "list"
    """Who goes first among those that are ready: 'list' (as the engine has it), 'longest', or 'path' (the longest way
    to the end of the study)."""


@dataclass(frozen=True)
class Outcome:
    """What came of it, in seconds."""

    makespan: float
    useful: float
    """Core seconds of work that counted: all of the study's."""
    lost: float
    """Core seconds of work that failures took."""
    saving: float
    """Core seconds that nodes waited for checkpoints to be written."""
    failures: int
    written: float
    """Bytes."""

    def utilisation(self, cluster: Cluster) -> float:
        return self.useful / (self.makespan * cluster.machines * cluster.cores)


def critical_path(pieces: Sequence[Piece]) -> float:
    """Seconds of the longest chain of nodes that need each other: no number of machines is faster."""
    return max(_ways(pieces, lambda p: p.seconds).values(), default=0.0)


def _ways(pieces: Sequence[Piece], seconds: Callable[[Piece], float]) -> dict[str, float]:
    """By node, the longest way from its start to the end of what needs it. Nodes stand after what they need."""
    own = {piece.name: seconds(piece) for piece in pieces}
    ways = dict(own)
    for piece in reversed(pieces):
        for need in piece.needs:
            ways[need] = max(ways[need], ways[piece.name] + own[need])
    return ways


@dataclass
class _Running:
    """A node on a machine."""

    piece: int
    machine: int
    since: float
    """When its work that is not saved yet began."""
    life: int = 0
    """How often the machine had failed before."""


class Simulation:
    """A discrete-event simulation of one study on one cluster.

    The driver and the disk serve one after the other. The driver starts nodes that are ready on free cores, in order;
    while it hears reports of progress it is slower at that. Work is safe once a checkpoint of it is written. The driver
    itself does not fail: a study that is called again goes on, which costs what a failed machine costs.
    """

    def __init__(self, pieces: Sequence[Piece], cluster: Cluster, seed: int = 0):
        self.pieces, self.cluster, self.random = pieces, cluster, random.Random(seed)
        index = {piece.name: i for i, piece in enumerate(pieces)}
        self.left = [piece.seconds for piece in pieces]
        self.missing = [len(piece.needs) for piece in pieces]
        self.needed_by: list[list[int]] = [[] for _ in pieces]
        for i, piece in enumerate(pieces):
            for need in piece.needs:
                self.needed_by[index[need]].append(i)
        self.rank = self._ranks()
        self.ready = [(self.rank[i], i) for i, count in enumerate(self.missing) if not count]
        heapq.heapify(self.ready)
        self.free = [(core, machine) for core in range(cluster.cores) for machine in range(cluster.machines)]
        heapq.heapify(self.free)  # one node per machine first
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.now = self.driver_free = self.disk_free = self.load = 0.0
        self.running: dict[int, _Running] = {}
        self.lives = [0] * cluster.machines
        self.undone = len(pieces)
        self.lost = self.saving = self.written = 0.0
        self.failures = 0

    def _ranks(self) -> list[tuple[float, int]]:
        guess: Callable[[Piece], float] = lambda p: p.seconds if p.expected is None else p.expected  # noqa: E731
        if self.cluster.order == "path":
            ways = _ways(self.pieces, guess)
            return [(-ways[piece.name], i) for i, piece in enumerate(self.pieces)]
        longest = self.cluster.order == "longest"
        return [(-guess(piece) if longest else 0.0, i) for i, piece in enumerate(self.pieces)]

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what))

    def run(self) -> Outcome:
        if math.isfinite(self.cluster.mtbf):
            for machine in range(self.cluster.machines):
                self._fail_later(machine)
        self._dispatch()
        while self.undone:
            self.now, _, what = heapq.heappop(self.events)
            what()
        useful = sum(piece.seconds for piece in self.pieces)
        return Outcome(self.now, useful, self.lost, self.saving, self.failures, self.written)

    # -- the driver

    def _driver(self, seconds: float) -> float:
        """When the driver will have done something that takes so long, after all that it has to do before."""
        share = max(0.02, 1 - self.load * self.cluster.event_seconds)
        self.driver_free = max(self.now, self.driver_free) + seconds / share
        return self.driver_free

    def _dispatch(self) -> None:
        while self.ready and self.free:
            _, i = heapq.heappop(self.ready)
            core, machine = heapq.heappop(self.free)
            begun = self.left[i] < self.pieces[i].seconds
            at = self._driver(self.cluster.node_seconds / 2) + (self.cluster.restart if begun else 0.0)
            run = _Running(i, machine, at, self.lives[machine])
            self.running[i] = run
            self.load += self._rate(i)
            self._work_on(run, core)

    def _rate(self, i: int) -> float:
        """Reports of a node per second."""
        piece = self.pieces[i]
        return piece.events / piece.seconds if piece.seconds else 0.0

    # -- a node

    def _work_on(self, run: _Running, core: int) -> None:
        """Until the next checkpoint, or to the end."""
        piece, left = self.pieces[run.piece], self.left[run.piece]
        if piece.checkpoint and left > self.cluster.interval:
            self.at(run.since + self.cluster.interval, partial(self._save, run, core))
        else:
            self.at(run.since + left, partial(self._end, run, core))

    def _save(self, run: _Running, core: int) -> None:
        """The disk writes one checkpoint after the other; who saves waits for its turn."""
        if self.running.get(run.piece) is run:
            size = self.pieces[run.piece].checkpoint
            ready = self.now + size * self.cluster.byte_seconds
            self.disk_free = max(ready, self.disk_free) + size / self.cluster.disk
            self.written += size
            self.at(self.disk_free, partial(self._saved, run, core, self.disk_free - self.now))

    def _saved(self, run: _Running, core: int, waited: float) -> None:
        if self.running.get(run.piece) is run:
            self.saving += waited
            self.left[run.piece] -= self.cluster.interval
            run.since = self.now
            self._work_on(run, core)

    def _end(self, run: _Running, core: int) -> None:
        """The core is free once the driver has heard of it."""
        if self.running.get(run.piece) is run:
            del self.running[run.piece]
            self.load -= self._rate(run.piece)
            self.at(self._driver(self.cluster.node_seconds / 2), partial(self._judged, run, core))

    def _judged(self, run: _Running, core: int) -> None:
        self.undone -= 1
        if run.life == self.lives[run.machine]:  # else it has failed since, and all its cores are new
            heapq.heappush(self.free, (core, run.machine))
        for i in self.needed_by[run.piece]:
            self.missing[i] -= 1
            if not self.missing[i]:
                heapq.heappush(self.ready, (self.rank[i], i))
        self._dispatch()

    # -- failures

    def _fail_later(self, machine: int) -> None:
        self.at(self.now + self.random.expovariate(1 / (3600 * self.cluster.mtbf)), partial(self._fail, machine))

    def _fail(self, machine: int) -> None:
        """All that runs there goes back to its last checkpoint, and to others once the lease is over."""
        self.failures += 1
        self.lives[machine] += 1
        self.free = [place for place in self.free if place[1] != machine]
        heapq.heapify(self.free)
        for run in [run for run in self.running.values() if run.machine == machine]:
            del self.running[run.piece]
            self.load -= self._rate(run.piece)
            self.lost += max(0.0, self.now - run.since)
            self.at(self.now + self.cluster.lease, partial(self._given_up, run.piece))
        self.at(self.now + self.cluster.repair, partial(self._repaired, machine))

    def _given_up(self, i: int) -> None:
        heapq.heappush(self.ready, (self.rank[i], i))
        self._dispatch()

    def _repaired(self, machine: int) -> None:
        for core in range(self.cluster.cores):
            heapq.heappush(self.free, (core, machine))
        self._fail_later(machine)
        self._dispatch()


def simulate(pieces: Sequence[Piece], cluster: Cluster, seed: int = 0) -> Outcome:
    return Simulation(pieces, cluster, seed).run()


# -- the study, with measured times


def seconds_of_records(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """(seconds, size) of all recorded nodes of a study, by name without the seed. A training that was stopped and gone
    on with has its time of all sittings in its clock."""
    found: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(folder.glob("nodes/**/node.json")):
        from naht.study.rows import read_rows

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
    """Seconds of nodes: as recorded where they are, else from their sizes and speeds.

    On the maps, POAM trains at the speed that `naht status` starts from (half of what two cores were measured to do,
    docs/smac.md), and other methods as much faster or slower as they were on predator-prey. Whatever else is done there
    goes by the same guesses as those of `naht status`.
    """

    def __init__(self, results: Path = ROOT / "results"):
        self.records = {task: seconds_of_records(results / task) for task in ("bit-game", "mpe-pp")}
        self._others = seconds_of_records(results / "mpe-pp-published-prey-5M")
        like = [r for name, r in self.records["mpe-pp"].items() if name.startswith("train/") and len(r) >= 5]
        self.spread = [seconds / median(s for s, _ in records) for records in like for seconds, _ in records]
        """How far trainings of some minutes are from the median of their like: neighbours, compiling, luck."""

    def recorded(self, task: str, name: str) -> list[tuple[float, float]]:
        return self.records.get(task, {}).get(group_of(name), [])

    def against_poam(self, name: str) -> float:
        """How many times as fast as POAM a method trains on predator-prey."""
        group = group_of(name)
        records = self.records["mpe-pp"] if group in self.records["mpe-pp"] else self._others
        if group not in records:
            return 1.0
        speed = {g: median(size / s for s, size in records[g]) for g in (group, "train/poam")}
        return speed[group] / speed["train/poam"]

    def guess(self, task: str, name: str, kind: str, size: float) -> float:
        """The typical seconds of a node."""
        from naht.study.overview import PLAYING, STARTING, TYPICAL

        if records := self.recorded(task, name):
            return median(s * size / of for s, of in records)
        speed = TYPICAL[task] * (self.against_poam(name) if kind == "training" else PLAYING)
        return STARTING + size / speed

    def draw(self, task: str, name: str, kind: str, size: float, rng: random.Random) -> float:
        """A node's seconds, this time."""
        if records := self.recorded(task, name):
            seconds, of = rng.choice(records)
            return seconds * size / of
        return self.guess(task, name, kind, size) * (rng.choice(self.spread) if kind == "training" else 1.0)


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
    from naht.study.plan import Request, plan_of

    found = []
    for task in tasks:
        sizes: dict[str, tuple[float, float]] = {}
        for node in plan_of(Request(task)).nodes:
            saved = events = 0.0
            if node.work.kind == "training":
                config = node.work.config  # type: ignore[attr-defined]
                if config.algorithm_name not in sizes:
                    sizes[config.algorithm_name] = checkpoint_of(config)
                saved, events = sizes[config.algorithm_name]
            needs = tuple(f"{task}/{need.name}" for need in node.needs)
            found.append(Sketch(task, node.name, node.work.kind, node.work.size, needs, saved, events))
    return found


def checkpoint_of(config: Any) -> tuple[float, float]:
    """Bytes of a run's checkpoint, and its number of updates. Nothing is computed; whoever its teammates are matters
    little, so scripted ones take the place of those that are not trained yet."""
    import jax

    from naht.tasks import TASKS as KNOWN
    from naht.training.trainer import make_trainer

    if any(name.startswith("node:") for name in config.teams.teammates):
        scripted = KNOWN[config.task.spec.name].teammates
        config = replace(config, teams=replace(config.teams, teammates=scripted))
    trainer, _ = make_trainer(config)

    def size(leaf: Any) -> int:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        return math.prod(leaf.shape) * leaf.dtype.itemsize

    state = jax.eval_shape(trainer.init, jax.random.key(0))
    return float(sum(map(size, jax.tree.leaves(state)))), float(trainer.num_updates)


def pieces_of(drawn: Iterable[Sketch], times: Times, rng: random.Random | None = None) -> list[Piece]:
    """The study, with typical times or, from a generator, with times as they may turn out."""
    pieces = []
    for s in drawn:
        typical = times.guess(s.task, s.name, s.kind, s.size)
        seconds = typical if rng is None else times.draw(s.task, s.name, s.kind, s.size, rng)
        name = f"{s.task}/{s.name}"
        pieces.append(Piece(name, seconds, s.needs, s.checkpoint, s.events, expected=typical))
    return pieces


def divided(pieces: Sequence[Piece], last: str, parts: int) -> list[Piece]:
    """The same study with nodes of this name (its last word) in so many parts that need nothing of each other."""
    whole = [piece.name for piece in pieces if piece.name.rpartition("/")[2] == last]
    names = {name: [f"{name}/{k}" for k in range(parts)] for name in whole}
    found = []
    for piece in pieces:
        needs = tuple(part for need in piece.needs for part in names.get(need, [need]))
        size, expected = piece.seconds / parts, None if piece.expected is None else piece.expected / parts
        if piece.name in names:
            found += [replace(piece, name=n, needs=needs, seconds=size, expected=expected) for n in names[piece.name]]
        else:
            found.append(replace(piece, needs=needs))
    return found


# -- what the driver and the file system cost


@dataclass(frozen=True)
class Nothing:
    """The work of a node that has none."""

    number: int
    kind = "nothing"
    size = 1

    def identity(self) -> Any:
        return {"number": self.number}

    def finish(self, place: Path, needs: Mapping[str, Path], report: Any) -> None:
        """There is nothing to do."""


class Paper:
    """A crew that has done everything at once and reports of it: what is left is the driver's own time."""

    broken = False

    def __init__(self, size: int, reports: int):
        self.size, self.reports = size, reports
        self.items: list[Any] = []
        self.running = 0
        self.seconds = 0.0
        """Of its own."""

    def start(self, name: str, function: Any, root: Path, node: Any) -> None:
        from naht.study.nodes import DONE
        from naht.training.crew import Ended
        from naht.training.progress import Event

        del function
        began = time.process_time()
        node.place(root).mkdir(parents=True, exist_ok=True)
        (node.place(root) / DONE).write_text("{}")
        self.running += 1
        self.items += [*[Event(name, i, self.reports) for i in range(self.reports)], Ended(name)]
        self.seconds += time.process_time() - began

    def news(self, seconds: float) -> Any:
        from naht.training.crew import Ended

        del seconds
        item = self.items.pop(0)
        self.running -= isinstance(item, Ended)
        return item

    def stop(self) -> list[Any]:
        return []


def graph_of_nothing(drawn: Sequence[Sketch]) -> list[Any]:
    """The study's graph with nodes that have nothing to do."""
    from naht.study.nodes import Node

    made: dict[str, Any] = {}
    for number, s in enumerate(drawn):
        made[f"{s.task}/{s.name}"] = Node(f"{s.task}/{s.name}", Nothing(number), tuple(made[n] for n in s.needs))
    return list(made.values())


REPORTS = 3
"""Of each node, when the driver is measured."""


def measure_driver(drawn: Sequence[Sketch], size: int) -> dict[str, float]:
    """The real engine with a crew of so many, told as `naht reproduce` tells it without a terminal. In seconds of
    processor time, so that neighbours on the machine do not count."""
    from naht.study.engine import carry_out
    from naht.study.nodes import DONE, is_done
    from naht.study.overview import survey
    from naht.training.crew import Ended
    from naht.training.lease import is_locked

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
    from naht.study.nodes import Node, finish

    with tempfile.TemporaryDirectory() as folder:
        nodes = [Node(f"nothing/{i}", Nothing(i)) for i in range(number)]
        began = time.perf_counter()
        for node in nodes:
            finish(Path(folder), node)
        return (time.perf_counter() - began) / number


def measure_writing(num_bytes: float, times: int = 3) -> dict[str, float]:
    """Seconds to write a checkpoint of this size, checksum and all, and of these the processor's own; the best of a
    few, for neighbours' sake."""
    import numpy as np

    from naht.training.checkpoints import save_checkpoint

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
    from naht.runtime import usable_cores

    one = [s for s in drawn if s.task == "5v6"]
    sizes = sorted({s.checkpoint for s in drawn if s.checkpoint})
    shown = {"smallest": sizes[0], "median": sizes[len(sizes) // 2], "largest": sizes[-1]}
    return {
        "cores": usable_cores(),
        "finish_seconds": measure_nodes(),
        "checkpoints": {name: measure_writing(size) for name, size in shown.items()},
        "driver": {"one study": measure_driver(one, 200), "all studies at once": measure_driver(drawn, 200)},
    }


# -- what is shown


@dataclass(frozen=True)
class Line:
    """A row of the table: a cluster, and what it took, over the repetitions."""

    what: str
    machines: int
    cores: int
    mtbf_hours: float
    order: str
    disk_mb_s: float
    repetitions: int
    hours: float
    hours_half_width_95: float
    ideal_hours: float
    path_hours: float
    utilisation: float
    lost_core_hours: float
    saving_core_hours: float
    failures: float
    written_gb: float


IN_TURN = "one study after the other"
"""As `naht reproduce all` does them, rather than all at once."""
DIVIDED = "meetings in 25 parts"
"""The node that takes longest could be many."""


class Study:
    """The sketches with their times, drawn once per repetition, so that all clusters have the same work to do."""

    def __init__(self, drawn: Sequence[Sketch], times: Times, repetitions: int, seed: int):
        self.tasks = list(dict.fromkeys(s.task for s in drawn))
        self.repetitions, self.seed = repetitions, seed
        self.turns = [pieces_of(drawn, times, random.Random(f"{seed} {i}")) for i in range(repetitions)]

    def _outcome(self, what: str, cluster: Cluster, i: int) -> Outcome:
        """Of one repetition."""
        pieces = self.turns[i]
        parts = [divided(pieces, "meetings", 25) if what == DIVIDED else pieces]
        if what == IN_TURN:
            parts = [[p for p in pieces if p.name.startswith(f"{task}/")] for task in self.tasks]
        found = [asdict(simulate(part, cluster, 1000 * self.seed + i)) for part in parts]
        return Outcome(**{name: sum(outcome[name] for outcome in found) for name in found[0]})

    def line(self, what: str, cluster: Cluster) -> Line:
        """A cluster, over the repetitions."""
        from naht.evaluation.statistics import mean_interval

        outcomes = [self._outcome(what, cluster, i) for i in range(self.repetitions)]
        hours = mean_interval([o.makespan / 3600 for o in outcomes])

        def mean(value: Callable[[Outcome], float]) -> float:
            return sum(map(value, outcomes)) / len(outcomes)

        path = sum(map(critical_path, self.turns)) / len(self.turns)
        return Line(
            what,
            cluster.machines,
            cluster.cores,
            cluster.mtbf,
            cluster.order,
            cluster.disk / 1e6,
            self.repetitions,
            round(hours.mean, 3),
            round(hours.half_width, 3),
            round(mean(lambda o: o.useful) / 3600 / cluster.machines / cluster.cores, 3),
            round(path / 3600, 3),
            round(mean(lambda o: o.utilisation(cluster)), 4),
            round(mean(lambda o: o.lost) / 3600, 3),
            round(mean(lambda o: o.saving) / 3600, 3),
            round(mean(lambda o: o.failures), 1),
            round(mean(lambda o: o.written) / 1e9, 1),
        )


def clusters(base: Cluster, machines: int) -> Iterator[tuple[str, Cluster]]:
    """What is tried with so many machines, by what is changed."""
    base = replace(base, machines=machines)
    for mtbf in HOURS:
        yield "failures", replace(base, mtbf=mtbf)
    for order in ("longest", "path"):
        yield "order", replace(base, order=order)
        yield "order", replace(base, order=order, mtbf=10.0)
    for order in ("list", "path"):
        yield IN_TURN, replace(base, order=order)
        yield DIVIDED, replace(base, order=order)
    yield DIVIDED, replace(base, order="path", mtbf=1.0)
    for speed in (20e6, 50e6, 100e6, 200e6, 1e9):
        yield "disk", replace(base, disk=speed)
    for times in (10, 100):
        slow = {"node_seconds": times * base.node_seconds, "event_seconds": times * base.event_seconds}
        yield f"driver {times} times as slow", replace(base, **slow)
    yield "driver that costs nothing", replace(base, node_seconds=0.0, event_seconds=0.0)
    for interval in (20.0, 300.0):
        for mtbf in (math.inf, 1.0):
            yield f"checkpoints every {interval:.0f} s", replace(base, interval=interval, mtbf=mtbf)


def lines(study: Study, facts: dict[str, Any], cores: int, disk: float, machines: Sequence[int]) -> list[Line]:
    """Everything that the document tells of."""
    driver = facts["driver"]["all studies at once"]
    costs = {name: driver[name] for name in ("node_seconds", "event_seconds")}
    largest = facts["checkpoints"]["largest"]
    base = Cluster(cores=cores, disk=disk, byte_seconds=largest["processor_seconds"] / largest["bytes"], **costs)
    return [study.line(what, cluster) for m in machines for what, cluster in clusters(base, m)]


def write_table(path: Path, found: Sequence[Line]) -> None:
    from naht.storage import write_file

    text = io.StringIO()
    writer = csv.DictWriter(text, list(asdict(found[0])), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(line) for line in found)
    write_file(path, text.getvalue().encode())


def read_table(path: Path) -> list[Line]:
    kinds = Line.__annotations__
    with open(path) as f:
        rows = list(csv.DictReader(f))
    parse: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float}
    return [Line(**{name: parse[kinds[name]](text) for name, text in row.items()}) for row in rows]


def draw(path: Path, found: Sequence[Line]) -> None:
    """Hours over machines with what bounds them, and how much of the machines' time is used."""
    from naht.report.figures import COLOURS, new_figure, save_figure

    figure = new_figure(9.2, 4.6)
    time_axis, used_axis = figure.subplots(1, 2)
    base = [line for line in found if line.what == "failures" and math.isinf(line.mtbf_hours)]
    x, path_hours = [line.machines for line in base], base[0].path_hours
    ideal = [line.ideal_hours for line in base]
    time_axis.plot(x, ideal, color="0.55", linestyle="--", linewidth=1, label="all cores busy")
    time_axis.axhline(path_hours, color="0.55", linestyle=":", linewidth=1.2)
    said = f"longest chain of nodes: {60 * path_hours:.0f} min"
    below = {"xytext": (0, -4), "textcoords": "offset points", "va": "top", "fontsize": 8.5, "color": "0.35"}
    time_axis.annotate(said, (x[0], path_hours), **below)

    def plot(mine: Sequence[Line], **looks: Any) -> None:
        time_axis.plot(x, [line.hours for line in mine], **looks)
        used_axis.plot(x, [100 * line.utilisation for line in mine], **looks)

    for colour, mtbf in zip(COLOURS, HOURS, strict=False):
        mine = [line for line in found if line.what == "failures" and line.mtbf_hours == mtbf]
        never = math.isinf(mtbf)  # drawn wide and pale: those that hardly fail lie on it
        looks = {"linewidth": 5, "alpha": 0.3} if never else {"linewidth": 1.5, "marker": "o", "markersize": 3.5}
        label = "no failures" if never else f"each machine fails every {mtbf:.0f} h"
        plot(mine, color=colour, label=label, **looks)
        band = [[line.hours + sign * line.hours_half_width_95 for line in mine] for sign in (-1, 1)]
        time_axis.fill_between(x, *band, color=colour, alpha=0.0 if never else 0.15, linewidth=0)
    further = {
        (IN_TURN, "list"): ("--", "no failures, one study after the other"),
        (DIVIDED, "path"): (":", "no failures, longest way first, meetings in parts"),
    }
    for (what, order), (dashes, label) in further.items():
        mine = [m for m in found if (m.what, m.order) == (what, order) and math.isinf(m.mtbf_hours)]
        plot(mine, color=COLOURS[6], linestyle=dashes, linewidth=1.3, label=label)
    time_axis.set_yscale("log")
    time_axis.set_ylabel("hours until all is done")
    shown = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if min(ideal) <= t <= 1.5 * base[0].hours]
    time_axis.set_yticks(shown, [f"{t:g}" for t in shown])
    used_axis.set_ylabel("core time that counts, %")
    used_axis.set_ylim(0, 103)
    for axis in (time_axis, used_axis):
        axis.set_xscale("log")
        axis.set_xticks(x, [str(m) for m in x])
        axis.minorticks_off()
        axis.set_xlabel(f"machines of {base[0].cores} cores")
        axis.grid(color="0.92")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = time_axis.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8.5, ncols=2, loc="outside lower center")
    save_figure(figure, path)


def markdown(found: Sequence[Line], machines: Sequence[int]) -> str:
    """Hours by machines, for a document."""
    rows: dict[str, dict[int, str]] = {}
    for line in found:
        failing = "" if math.isinf(line.mtbf_hours) else f", a failure every {line.mtbf_hours:g} h"
        disk = "" if line.what != "disk" else f", {line.disk_mb_s:g} MB/s"
        order = "" if line.order == "list" else f", {line.order} first"
        cell = f"{line.hours:.2f} ± {line.hours_half_width_95:.2f} ({100 * line.utilisation:.0f} %)"
        rows.setdefault(f"{line.what}{failing}{order}{disk}", {})[line.machines] = cell
    shown = [f"| | {' | '.join(map(str, machines))} |", f"|---|{'---:|' * len(machines)}"]
    return "\n".join(
        [*shown, *[f"| {name} | {' | '.join(cells.get(m, '') for m in machines)} |" for name, cells in rows.items()]]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, help="only measure driver, nodes and checkpoints here, into this file")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="what was measured")
    parser.add_argument("--machines", type=int, nargs="+", default=list(MACHINES))
    parser.add_argument("--cores", type=int, default=2, help="of a machine")
    parser.add_argument("--disk", type=float, default=500.0, help="MB/s that all machines together can write")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--table", type=Path)
    chosen = parser.parse_args()
    from naht.runtime import configure

    configure()
    drawn = sketches()
    if chosen.measure:
        facts = measured(drawn)
        chosen.measure.write_text(json.dumps(facts, indent=1) + "\n")
        print(json.dumps(facts, indent=1))
        return
    study = Study(drawn, Times(), chosen.repetitions, chosen.seed)
    facts = json.loads(chosen.measured.read_text())
    found = lines(study, facts, chosen.cores, 1e6 * chosen.disk, chosen.machines)
    if chosen.table:
        write_table(chosen.table, found)
    if chosen.figure:
        draw(chosen.figure, found)
    print(markdown(found, chosen.machines))


if __name__ == "__main__":
    main()
