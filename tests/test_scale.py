"""The simulation of a study on many machines, against what one works out by hand."""

import json
import math
import random
from dataclasses import replace

import pytest

from cluster_simulation import Cluster, Piece, Simulation, critical_path, divided, simulate
from naht.study.overview import TYPICAL
from scale import DIVIDED, IN_TURN, MEASURED, Line, Study, draw, read_table, write_table
from scale_costs import Times, graph_of_nothing, group_of, measure_driver, pieces_of, sketches

DIAMOND = [Piece("a", 10), Piece("b", 20, ("a",)), Piece("c", 5, ("a",)), Piece("d", 1, ("b", "c"))]


def crowd(number: int, seed: int = 0) -> list[Piece]:
    """A random graph: every node may need some of those before it."""
    rng = random.Random(seed)
    pieces: list[Piece] = []
    for i in range(number):
        needs = rng.sample([p.name for p in pieces], min(len(pieces), rng.randint(0, 2)))
        pieces.append(Piece(str(i), rng.uniform(1, 500), tuple(needs), checkpoint=rng.choice([0, 1e6])))
    return pieces


def makespan(pieces, seed=0, **settings):
    return simulate(pieces, Cluster(**{"cores": 1} | settings), seed).makespan


def test_graphs_by_hand():
    assert makespan(DIAMOND) == 36
    assert makespan(DIAMOND, machines=2) == makespan(DIAMOND, cores=2) == 31  # b beside c
    assert critical_path(DIAMOND) == 31
    # 3, 3, 4 on two cores: in the order of the list the 4 comes last, longest first beside a 3.
    three = [Piece("x", 3), Piece("y", 3), Piece("z", 4)]
    assert makespan(three, machines=2) == 7
    assert makespan(three, machines=2, order="longest") == 6
    # A short node that a long one waits for: only the way to the end tells.
    waiting = [Piece("x", 4), Piece("y", 4), Piece("short", 1), Piece("long", 8, ("short",))]
    assert makespan(waiting, machines=2, order="longest") == 4 + 1 + 8
    assert makespan(waiting, machines=2, order="path") == 9
    # An order goes by what one expects, not by what one can't know.
    assert makespan([replace(p, expected=0) for p in three], machines=2, order="longest") == 7


def test_the_driver_and_the_disk_by_hand():
    # Two starts of half a second, one after the other; both end after 10 s; two ends of half a second.
    pair = [Piece("x", 10), Piece("y", 10)]
    assert makespan(pair, machines=2, node_seconds=1.0) == pytest.approx(11.5)
    # Half of the driver's time goes to reports, 5 per second from each of the two, once both run.
    busy = [replace(p, events=50) for p in pair]
    slower = makespan(busy, machines=2, node_seconds=1.0, event_seconds=0.05)
    assert 11.5 < slower < 12.5
    # 150 s with a checkpoint after every 60: two of 100 bytes, a second each; none at the end.
    one = [Piece("x", 150, checkpoint=100)]
    outcome = simulate(one, Cluster(cores=1, disk=100.0))
    assert (outcome.makespan, outcome.saving, outcome.written) == (152, 2, 200)
    # And half a second of its core to make each of them ready.
    assert makespan(one, disk=100.0, byte_seconds=0.005) == 153
    # Two at a time: the second one waits for the first, and from then on they take turns.
    assert makespan([replace(one[0], name=n) for n in "xy"], machines=2, disk=100.0) == 153


def test_one_machine_without_failures_takes_the_sum_of_the_work():
    for order in ("list", "longest", "path"):
        pieces = crowd(60)
        outcome = simulate(pieces, Cluster(cores=1, order=order))
        assert outcome.makespan == pytest.approx(sum(p.seconds for p in pieces))
        assert outcome.utilisation(Cluster(cores=1)) == pytest.approx(1.0)


@pytest.mark.parametrize("mtbf", [math.inf, 0.2])
@pytest.mark.parametrize("order", ["list", "longest", "path"])
def test_bounds(order, mtbf):
    """Nobody is faster than the longest chain or than all cores busy; without failures, a list is at most as slow as
    both together (Graham)."""
    for seed in range(5):
        pieces = crowd(60, seed)
        work, path = sum(p.seconds for p in pieces), critical_path(pieces)
        for machines in (1, 3, 50):
            took = makespan(pieces, seed, machines=machines, order=order, mtbf=mtbf)
            assert took >= max(path, work / machines) - 1e-6
            assert took <= path + work / machines or math.isfinite(mtbf)


def test_failures_cost_what_they_cost_by_hand():
    """One core: between failures it works, and what is not work that counts is lost, repaired or begun again."""
    for seed in range(5):
        pieces = [replace(p, needs=()) for p in crowd(30, seed)]
        cluster = Cluster(cores=1, mtbf=0.3, repair=300, lease=60, restart=8)
        simulation = Simulation(pieces, cluster, seed)
        outcome = simulation.run()
        assert outcome.failures > 3
        assert all(left > 0 for left in simulation.left)
        assert outcome.useful == pytest.approx(sum(p.seconds for p in pieces))
        least = outcome.useful + outcome.lost + outcome.failures * cluster.repair
        assert least <= outcome.makespan + 1e-6 <= least + outcome.failures * cluster.restart + 1e-5
        # At most an interval is lost of what saves on its way.
        saving = simulate([replace(p, checkpoint=1.0) for p in pieces], cluster, seed)
        assert saving.lost <= saving.failures * (cluster.interval + 1e-6)


def test_a_failure_by_hand():
    """Fails once, after 100 s: 60 are saved; the machine is back after 300 s, and goes on after 8."""
    simulation = Simulation([Piece("x", 150, checkpoint=1.0)], Cluster(cores=1, repair=300, lease=60, restart=8))
    simulation.at(100, lambda: simulation._fail(0))
    simulation._fail_later = lambda _: None
    outcome = simulation.run()
    assert outcome.lost == 40
    assert outcome.makespan == 100 + 300 + 8 + 90
    # With another machine there, it waits for the lease only.
    two = Simulation([Piece("x", 150, checkpoint=1.0)], Cluster(machines=2, cores=1, repair=300, lease=60, restart=8))
    two.at(100, lambda: two._fail(0))
    two._fail_later = lambda _: None
    assert two.run().makespan == 100 + 60 + 8 + 90


def test_the_same_seed_gives_the_same_result():
    pieces, cluster = crowd(60), Cluster(machines=5, mtbf=0.5, disk=1e5, node_seconds=0.1)
    assert simulate(pieces, cluster, 3) == simulate(pieces, cluster, 3)
    assert simulate(pieces, cluster, 3) != simulate(pieces, cluster, 4)


def test_a_node_in_parts_is_the_same_work():
    pieces = [Piece("5v6/train", 5), Piece("5v6/meetings", 100, ("5v6/train",)), Piece("after", 1, ("5v6/meetings",))]
    parts = divided(pieces, "meetings", 4)
    assert sum(p.seconds for p in parts) == 106
    assert critical_path(parts) == 31
    assert makespan(parts, machines=2) == 56


def test_studies_at_once_and_in_turn():
    """Each study leaves one of two machines idle; both at once do not."""
    studies = Study([[Piece("bit-game/x", 3600), Piece("mpe-pp/x", 3600)]] * 2, seed=0)
    both = Cluster(machines=2, cores=1)
    assert (studies.line("failures", both).hours, studies.line("failures", both).utilisation) == (1, 1)
    assert (studies.line(IN_TURN, both).hours, studies.line(IN_TURN, both).utilisation) == (2, 0.5)


def record(results, study, name, seconds, size):
    place = results / study / "nodes" / name / "key"
    place.mkdir(parents=True)
    (place / "node.json").write_text(json.dumps({"name": name, "seconds": seconds, "size": size}))


def test_guesses_by_hand(tmp_path):
    """Where a node has no record, its like elsewhere has, and POAM's trainings say how two studies compare."""
    for seed, seconds in enumerate((100, 200, 400)):  # 2 s for 1000 steps
        record(tmp_path, "5v6", f"train/poam/seed{seed}", seconds, 100_000)
    record(tmp_path, "5v6", "meetings", 50, 100_000)  # a quarter of that
    record(tmp_path, "mpe-pp", "train/poam/seed0", 100, 100_000)
    record(tmp_path, "mpe-pp", "train/told/seed0", 30, 100_000)
    record(tmp_path, "mpe-pp", "meetings", 1, 100_000)
    record(tmp_path, "8v9", "train/poam/seed0", 600, 100_000)
    record(tmp_path, "mpe-pp-published-prey-5M", "train/poam/seed0", 500, 100_000)
    record(tmp_path, "mpe-pp-published-prey-5M", "population/iql-seed0", 1000, 100_000)
    times = Times(tmp_path)
    assert times.guess("5v6", "train/poam/seed4", "training", 1000) == 2
    assert times.guess("5v6", "train/poam-split/seed4", "training", 1000) == 2
    assert times.guess("5v6", "train/told/seed0", "training", 1000) == pytest.approx(2 * 0.3)
    assert times.guess("8v9", "train/told/seed0", "training", 1000) == pytest.approx(6 * 0.3)
    assert times.guess("8v9", "population/iql-seed3", "training", 1000) == pytest.approx(6 * 2)
    assert times.guess("8v9", "meetings", "meetings", 1000) == pytest.approx(6 / 4)  # as on 5v6
    slower = TYPICAL["5v6"] / TYPICAL["10v11"]  # nothing of it is recorded
    assert times.guess("10v11", "train/poam/seed0", "training", 1000) == pytest.approx(2 * slower)
    assert times.guess("10v11", "meetings", "meetings", 1000) == pytest.approx(2 * slower / 4)
    # What nobody has recorded is training as POAM does, or playing, five times as fast.
    assert times.guess("8v9", "train/new/seed0", "training", 1000) == pytest.approx(6)
    assert times.guess("8v9", "evaluate/new/seed0", "evaluation", 1000) == pytest.approx(6 / 5)


def test_times_of_the_real_study():
    """What was recorded is taken as it is, and all that is left can be guessed."""
    assert [group_of(n) for n in ("train/poam/seed3", "population/vdn-seed0", "meetings")] == [
        "train/poam",
        "population/vdn",
        "meetings",
    ]
    times = Times()
    recorded = [seconds for seconds, _ in times.recorded("mpe-pp", "train/poam/seed0")]
    assert len(recorded) == 5
    assert times.guess("mpe-pp", "train/poam/seed0", "training", 3_000_000) == pytest.approx(sorted(recorded)[2])
    assert times.draw("mpe-pp", "train/poam/seed0", "training", 3_000_000, random.Random(0)) in recorded
    assert times.recorded("5v6", "train/poam/seed0")
    drawn = sketches(("bit-game",))
    pieces = pieces_of(drawn, times)
    assert len(pieces) == 30
    assert {p.checkpoint > 0 for p in pieces if "train" in p.name} == {True}
    nodes = graph_of_nothing(drawn)
    assert [node.name for node in nodes] == [p.name for p in pieces]
    facts = measure_driver(drawn, 4)
    assert facts["nodes"] == 30
    assert facts["node_seconds"] > 0


def test_tables_and_figures(tmp_path):
    found = [
        Line(what, m, 2, mtbf, order, 500.0, 2, 30 / m, 0.1, 28 / m, 0.5, 0.9, 0.0, 0.0, 0.0, 1.0)
        for m in (1, 4)
        for what, mtbf, order in [
            *[("failures", mtbf, "list") for mtbf in (math.inf, 100.0, 10.0, 1.0)],
            ("order", math.inf, "longest"),
            (IN_TURN, math.inf, "list"),
            (DIVIDED, math.inf, "path"),
        ]
    ]
    write_table(tmp_path / "a.csv", found)
    assert read_table(tmp_path / "a.csv") == found
    draw(tmp_path / "a.png", found)
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert json.loads(MEASURED.read_text())["driver"]["all studies at once"]["nodes"] > 500
