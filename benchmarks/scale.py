"""How long does the whole study take on many machines that fail? A simulation of its real graph with measured times.

    python benchmarks/scale.py --measure docs/results/scale_measured.json
    python benchmarks/scale.py --figure docs/scale.png --table docs/results/scale.csv

The first command measures what a driver, a checkpoint and a node cost on this file system; the second simulates the six
studies with these numbers, on more and more machines and with more and more failures. What follows: docs/scale.md.
The simulator is cluster_simulation.py; what the study's work takes, scale_costs.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster_simulation import Cluster, Outcome, Piece, critical_path, divided, simulate
from naht.evaluation.statistics import mean_interval
from naht.report.figures import COLOURS, new_figure, save_figure
from naht.runtime import configure
from naht.storage import write_file
from naht.study.engine import LARGE
from scale_costs import Times, measured, pieces_of, sketches

MACHINES = (1, 2, 4, 10, 20, 50, 100, 200)
HOURS = (math.inf, 100.0, 10.0, 1.0)
"""Mean times between the failures of a machine."""
MEASURED = Path(__file__).parent.parent / "docs/results/scale_measured.json"


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
    """The studies of all tasks with times drawn once per repetition, so that all clusters have the same work to do."""

    def __init__(self, turns: Sequence[Sequence[Piece]], seed: int):
        self.turns, self.seed = turns, seed
        self.tasks = list(dict.fromkeys(piece.name.partition("/")[0] for piece in turns[0]))

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
        outcomes = [self._outcome(what, cluster, i) for i in range(len(self.turns))]
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
            len(self.turns),
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
    """What is tried with so many machines, by what is changed. Nodes go in the engine's order."""
    base = replace(base, machines=machines, order="path" if machines * base.cores >= LARGE else "list")
    for mtbf in HOURS:
        yield "failures", replace(base, mtbf=mtbf)
    for order in ("list", "longest"):
        yield "order", replace(base, order=order)
    yield IN_TURN, base
    for mtbf in (math.inf, 1.0):
        yield DIVIDED, replace(base, mtbf=mtbf)
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
        IN_TURN: ("--", "no failures, one study after the other"),
        DIVIDED: (":", "no failures, meetings in parts"),
    }
    for what, (dashes, label) in further.items():
        mine = [line for line in found if line.what == what and math.isinf(line.mtbf_hours)]
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
        order = f", {line.order}" if line.what == "order" else ""
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
    configure()
    drawn = sketches()
    if chosen.measure:
        facts = measured(drawn)
        chosen.measure.write_text(json.dumps(facts, indent=1) + "\n")
        print(json.dumps(facts, indent=1))
        return
    times, repetitions = Times(), range(chosen.repetitions)
    turns = [pieces_of(drawn, times, random.Random(f"{chosen.seed} {i}")) for i in repetitions]
    facts = json.loads(chosen.measured.read_text())
    found = lines(Study(turns, chosen.seed), facts, chosen.cores, 1e6 * chosen.disk, chosen.machines)
    if chosen.table:
        write_table(chosen.table, found)
    if chosen.figure:
        draw(chosen.figure, found)
    print(markdown(found, chosen.machines))


if __name__ == "__main__":
    main()
