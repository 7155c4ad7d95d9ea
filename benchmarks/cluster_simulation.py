"""A simulator of work on a cluster: nodes that need each other, machines that fail, checkpoints, one disk, one driver.

Nothing of naht is in it; scale.py asks it about the study.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial


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
