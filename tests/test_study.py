"""Studies: what determines a node, what is done and what is not, kills and company, and verdicts by hand."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from naht import NahtError, load_agent, run_config
from naht.agents.policy import NO_ACTION
from naht.config import departures, encode
from naht.errors import Interrupted
from naht.evaluation import crossplay, modelling
from naht.evaluation.embeddings import linear_probe
from naht.evaluation.modelling import beliefs
from naht.evaluation.statistics import improvement_over_tasks, iqm_over_tasks, profile
from naht.learning.ppo import PPOConfig
from naht.study import demo as demonstration
from naht.study.book import Book, Missing, above_zero, higher, level, mean_of, means
from naht.study.engine import LARGE, carry_out
from naht.study.nodes import DONE, Node, finish, in_order, is_done
from naht.study.overview import longest_ways, survey, typical_seconds
from naht.study.paper import published
from naht.study.plan import METHODS, NAIVE, Request, plan_of
from naht.study.rows import read_rows, write_rows
from naht.study.works import Meetings, Training
from naht.tasks import make_env
from naht.training.crew import Ended, Here, Processes
from naht.training.lease import is_locked
from naht.training.progress import Event
from probes import shrunk


@dataclass(frozen=True)
class Adding:
    """Adds a number to what the needed nodes have; notes every time it does so."""

    number: int
    log: Path
    seconds: float = 0.0
    fails: bool = False
    kind = "sum"
    size = 1

    def identity(self):
        return {"number": self.number, "fails": self.fails}

    def finish(self, place, needs, report):
        with open(self.log, "a") as f:
            f.write(f"{self.number}\n")
        for i in range(round(self.seconds / 0.05)):
            time.sleep(0.05)
            report(Event("", i, 100))
        if self.fails:
            raise NahtError(f"{self.number} can't be added")
        total = self.number + sum(int((path / "sum").read_text()) for path in needs.values())
        (place / "sum").write_text(str(total))


@dataclass
class Sums:
    """1, 2 and 4; 1 + 2 + 8 = 11; 11 + 4 + 16 = 31."""

    root: Path
    changes: dict = field(default_factory=dict)

    @property
    def log(self):
        return self.root / "log"

    def node(self, name, number, *needs):
        return Node(name, Adding(number, self.log, **self.changes.get(name, {})), needs)

    @property
    def nodes(self):
        one, two, four = self.node("one", 1), self.node("two", 2), self.node("four", 4)
        three = self.node("pairs/three", 8, one, two)
        return in_order([self.node("all", 16, three, four)])

    @property
    def done(self):
        """What was done, in order."""
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def result(self, name="all"):
        (node,) = [node for node in self.nodes if node.name == name]
        return int((node.place(self.root) / "sum").read_text())


def test_nodes_stand_after_what_they_need_and_once(tmp_path):
    assert [node.name for node in Sums(tmp_path).nodes] == ["one", "two", "pairs/three", "four", "all"]


@pytest.mark.parametrize("crew", [Here, lambda: Processes(2)], ids=["here", "processes"])
def test_a_study_does_what_is_missing_and_no_more(crew, tmp_path):
    sums = Sums(tmp_path)
    outcome = carry_out(tmp_path, sums.nodes, crew())
    assert (outcome.left, outcome.failed) == ([], {})
    assert sorted(sums.done) == [1, 2, 4, 8, 16]
    assert sums.result() == 31
    record = json.loads((sums.nodes[-1].place(tmp_path) / DONE).read_text())
    assert record["needs"] == {node.name: node.key for node in sums.nodes[-1].needs}
    carry_out(tmp_path, sums.nodes, Here())
    assert len(sums.done) == 5  # nothing twice
    # Another number for 4 leaves what does not depend on it.
    other = Sums(tmp_path)
    other.node = lambda name, number, *needs: Sums.node(other, name, 5 if name == "four" else number, *needs)
    carry_out(tmp_path, other.nodes, Here())
    assert sorted(other.done[5:]) == [5, 16]
    assert (other.result(), sums.result()) == (32, 31)  # both are there, each in a place of its own


def test_a_node_that_fails_takes_along_only_what_needs_it(tmp_path):
    sums = Sums(tmp_path, {"two": {"fails": True}})
    outcome = carry_out(tmp_path, sums.nodes, Here())
    assert {name: str(error) for name, error in outcome.failed.items()} == {"two": "2 can't be added"}
    assert [node.name for node in outcome.left] == ["two", "pairs/three", "all"]
    assert sorted(sums.done) == [1, 2, 4]
    with pytest.raises(NahtError, match="pairs/three needs two, which is not done"):
        finish(tmp_path, sums.nodes[2])


@dataclass
class Noting(Here):
    """Does one thing after the other, however many it says it could do at once."""

    size: int = 1
    begun: list = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

    def start(self, name, function, *args):
        self.begun.append(name)
        super().start(name, function, *args)


def test_a_large_crew_begins_with_what_the_end_waits_for(tmp_path):
    """Two nodes that nothing needs, and a short one that a long one waits for."""
    log = tmp_path / "log"
    x, y, short = (Node(name, Adding(number, log)) for name, number in (("x", 1), ("y", 2), ("short", 3)))
    long = Node("long", Adding(4, log), (short,))
    each = typical_seconds(x)
    assert longest_ways([x, y, short, long]) == {"x": each, "y": each, "short": 2 * each, "long": each}
    for size, order in ((LARGE - 1, ["x", "y", "short", "long"]), (LARGE, ["short", "x", "y", "long"])):
        crew = Noting(size)
        assert carry_out(tmp_path / str(size), [x, y, short, long], crew).left == []
        assert crew.begun == order


class Unreadable(Adding):
    def identity(self):
        raise NahtError("there is no prey 'mine.npz'")


def test_results_are_shown_without_a_file_that_their_world_read(tmp_path):
    """If there is one result of that name, it is meant; of several, nobody can say which. Nothing is done so."""
    book, log = Book(tmp_path, None), tmp_path / "log"
    unreadable = Node("one", Unreadable(1, log))
    with pytest.raises(Missing):
        book.place(unreadable)
    with pytest.raises(NahtError, match="there is no prey"):
        carry_out(tmp_path, [unreadable], Here())
    first = Node("one", Adding(1, log))
    finish(tmp_path, first)
    assert book.place(unreadable) == first.place(tmp_path)
    finish(tmp_path, Node("one", Adding(2, log)))
    with pytest.raises(Missing):
        book.place(unreadable)


def test_time_may_be_up(tmp_path):
    sums = Sums(tmp_path, {"one": {"seconds": 0.2}})
    assert len(carry_out(tmp_path, sums.nodes, Here(), until=time.monotonic() - 1).left) == 5
    left = carry_out(tmp_path, sums.nodes, Here(), until=time.monotonic() + 0.1).left
    assert [node.name for node in left] == ["two", "pairs/three", "four", "all"]
    assert carry_out(tmp_path, sums.nodes, Here()).left == []


def test_two_commands_share_the_work(tmp_path):
    """Nobody does what the other is doing or has done, and both wait for all of it."""
    slow = {name: {"seconds": 0.5} for name in ("one", "two", "four", "pairs/three")}
    sums = Sums(tmp_path, slow)
    with_company = subprocess.Popen([sys.executable, "-c", COMPANION, str(tmp_path), json.dumps(slow)])
    outcome = carry_out(tmp_path, sums.nodes, Here())
    assert outcome.left == []
    assert with_company.wait() == 0
    assert sorted(sums.done) == [1, 2, 4, 8, 16]


def test_killed_anywhere_and_called_again_it_ends_the_same(tmp_path):
    """The command dies at once, without a word; its workers notice. What was done stays done."""
    slow = {name: {"seconds": 0.3} for name in ("one", "two", "four", "pairs/three", "all")}
    sums = Sums(tmp_path, slow)
    for patience in (1.2, 1.6, 2.0):  # a process needs a second to start
        command = [sys.executable, "-c", COMPANION, str(tmp_path), json.dumps(slow), "2"]
        with subprocess.Popen(command) as process:
            time.sleep(patience)
            process.kill()
        left = [node for node in sums.nodes if not is_done(tmp_path, node)]
    while any(is_locked(node.place(tmp_path)) for node in left):
        time.sleep(0.1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(DONE)}
    assert carry_out(tmp_path, sums.nodes, Here()).left == []
    assert sums.result() == 31
    assert {path: path.stat().st_mtime_ns for path in before} == before


COMPANION = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_study import Here, Processes, Sums, carry_out
if __name__ == "__main__":
    crew = Processes(2) if sys.argv[3:] else Here()
    assert carry_out(Path(sys.argv[1]), Sums(Path(sys.argv[1]), json.loads(sys.argv[2])).nodes, crew).left == []
"""


def test_a_stop_signal_ends_workers_and_is_passed_on(tmp_path):
    sums, seen = Sums(tmp_path, {"one": {"seconds": 30}, "two": {"seconds": 30}}), []

    def watch(item):
        if isinstance(item, Event) and not seen:  # somebody is at work; a second signal would end this process
            seen.append(item)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="go on with the same command"):
        carry_out(tmp_path, sums.nodes, Processes(2), watch=watch)
    assert not is_done(tmp_path, sums.nodes[0])


def test_a_worker_that_dies_is_noticed(tmp_path):
    sums = Sums(tmp_path, {"one": {"seconds": 30}})
    crew, killed = Processes(1), []

    def watch(item):
        if isinstance(item, Event) and not killed:
            killed.append(True)
            os.kill(crew._workers[0].process.pid, signal.SIGKILL)

    with pytest.raises(NahtError, match="a worker process died; 5 nodes are left: go on with the same command"):
        carry_out(tmp_path, sums.nodes, crew, watch=watch)
    sums.changes.clear()
    assert carry_out(tmp_path, sums.nodes, Here()).left == []


def test_a_survey_says_what_is_done_and_how_long_the_rest_takes(tmp_path):
    sums = Sums(tmp_path)
    before = survey(tmp_path, sums.nodes)
    assert (before.done, before.running, before.measured) == ((), {}, False)
    news = []
    carry_out(tmp_path, sums.nodes[:2], Here(), watch=news.append)
    assert [item.name for item in news if isinstance(item, Ended)] == ["one", "two"]
    after = survey(tmp_path, sums.nodes)
    assert set(after.done) == {"one", "two"}
    assert set(after.seconds) == {"pairs/three", "four", "all"}
    assert after.measured
    assert 0 < after.left(2) < before.left(2)


# -- what determines a node


def test_settings_that_depart_alike_are_equal():
    plain = PPOConfig()
    assert departures(plain) == {"type": "PPOConfig"}
    changed = replace(plain, lr=1e-3, network=replace(plain.network, hidden=8))
    assert departures(changed)["lr"] == 1e-3
    assert departures(changed)["network"] == {"type": "NetworkConfig", "hidden": 8}
    assert encode(changed)["clip"] == plain.clip
    assert "clip" not in departures(changed)  # so that a setting which is added later changes nothing


def test_a_training_is_determined_by_settings_teammates_and_world(tmp_path):
    config = run_config("mpe-pp", "poam")
    keys = {Node("a", Training(c)).key for c in (config, replace(config, seed=1), replace(config, steps=10))}
    assert len(keys) == 3
    smaller = replace(config, pieces=replace(config.pieces, rows=4))
    assert Node("a", Training(smaller)).key == Node("a", Training(config)).key  # rounding only
    # The same file name with another agent in it.
    team = Path(load_agent("src/naht/assets/zoo/mpe-pp/vdn-seed0.safetensors").save(tmp_path / "team.safetensors"))
    mine = replace(config, teams=replace(config.teams, teammates=(str(team),)))
    before = Node("a", Training(mine)).key
    load_agent("src/naht/assets/zoo/mpe-pp/vdn-seed1.safetensors").save(team)
    assert Node("a", Training(mine)).key != before


def test_the_plan_of_predator_prey():
    plan = plan_of(Request("mpe-pp", seeds=2, steps=1000))
    nodes = plan.nodes
    assert len({node.name for node in nodes}) == len({node.key for node in nodes}) == len(nodes)
    trained = {node.name.split("/")[1] for node in nodes if node.name.startswith("train/")}
    assert set(METHODS) <= trained
    few = plan_of(Request("mpe-pp", seeds=2, steps=1000, parts=("crossplay",))).nodes
    assert {node.name for node in few} == {"train/poam-aht/seed0", "train/poam-aht/seed1", "meetings"}
    assert {node.key for node in few} < {node.key for node in nodes}
    assert len(few[-1].work.pairs) == 5 * 25 + 2 * 2 + 6 * 5 * 5
    with pytest.raises(NahtError, match="unknown part of the study 'curve': did you mean curves"):
        plan_of(Request("mpe-pp", parts=("curve",))).nodes  # noqa: B018
    # With another prey, strangers are trained first; seeds of a smaller study are among those of a larger one.
    names = [node.name for node in plan_of(Request("mpe-pp", prey="x.pt", seeds=1, parts=("pair",))).nodes]
    assert names[:6] == [*[f"population/{a}-seed0" for a in NAIVE], "train/poam/seed0"]
    larger = {node.key for node in plan_of(Request("mpe-pp", seeds=3, steps=1000)).parts["curves"]}
    assert {node.key for node in plan.parts["curves"]} < larger


def test_meetings_that_were_played_stay_played(tmp_path, monkeypatch):
    """Stopped after every part, and with one part cut off: the same rows, and nothing is played twice."""
    teams, env = ("bernoulli", "turns", "static"), make_env("bit-game")
    work = Meetings(env, teams, teams, episodes=80)
    whole, often = tmp_path / "whole", tmp_path / "often"
    work.finish(whole, {}, lambda _: None)
    monkeypatch.setattr(crossplay, "PART", 2)
    blocks, real = [], crossplay.play_blocks

    def counted(arena, ours, theirs, keys, team):
        blocks.append(len(keys))
        return real(arena, ours, theirs, keys, team)

    def stop(event):
        said.append((event.step, event.total))
        if len(blocks) > before:
            raise Interrupted("stopped", signal.SIGTERM)

    monkeypatch.setattr(crossplay, "play_blocks", counted)
    for _ in range(99):
        before, said = len(blocks), []
        try:
            work.finish(often, {}, stop)
            break
        except Interrupted:
            assert said == [(i + 1, said[0][1]) for i in range(before + 1)]
    # 9 meetings at N = 1 and 2, 80 episodes each, in blocks of at most 128: twelve, two in a part.
    assert blocks == [2] * 6
    assert sorted(p.name for p in often.iterdir()) == sorted(p.name for p in whole.iterdir()) == ["rows.csv.gz"]
    assert (often / "rows.csv.gz").read_bytes() == (whole / "rows.csv.gz").read_bytes()


# -- rows and verdicts


def test_rows_come_back_as_they_were(tmp_path):
    path = tmp_path / "rows.csv.gz"
    rows = [["vdn-seed1", 2, 0.1234567891, ""], ["a, b", -1, float(3), 7]]
    write_rows(path, ["who", "n", "x", "maybe"], rows)
    assert read_rows(path) == [
        {"who": "vdn-seed1", "n": 2, "x": 0.1234568, "maybe": None},
        {"who": "a, b", "n": -1, "x": 3, "maybe": 7},
    ]
    before = path.read_bytes()
    write_rows(path, ["who", "n", "x", "maybe"], rows)
    assert path.read_bytes() == before
    path.write_bytes(before[:-9])
    with pytest.raises(NahtError, match="can't read"):
        read_rows(path)


def test_strangers_and_counts_weigh_the_same():
    rows = [{"strangers": "a-seed0", "n": 1, "return": x} for x in (0.0, 0.0, 3.0)]
    rows += [{"strangers": "a-seed0", "n": 2, "return": 5.0}, {"strangers": "b-seed1", "n": 1, "return": 9.0}]
    assert mean_of(means(rows), lambda _: True) == pytest.approx((1 + 5 + 9) / 3)
    assert mean_of(means(rows), lambda name: name == "a-seed0", 1) == 1.0


def test_verdicts_by_hand():
    """Welch for (4, 6) and (1, 1.2): difference 3.9, standard error 1.005, 1.02 degrees of freedom: t = 12.4."""
    verdict = higher("more", [4.0, 6.0], [1.0, 1.2])
    assert verdict.difference.mean == pytest.approx(3.9)
    assert verdict.difference.half_width == pytest.approx(12.4, abs=0.3)
    assert verdict.answer == "undecided"
    assert verdict.improvement.mean == 1.0
    assert higher("more", [4.0, 4.1, 4.2], [1.0, 1.1, 1.2]).answer == "holds"
    assert higher("more", [1.0, 1.1, 1.2], [4.0, 4.1, 4.2]).answer == "does not hold"
    assert higher("more", [1.0], [4.0, 4.1]).answer == "undecided"
    assert above_zero("up", [0.5, 0.6, 0.7]).answer == "holds"
    assert above_zero("up", [-0.5, 0.6, 0.7]).answer == "undecided"
    assert level("same", [10.0, 10.1, 9.9], [10.05, 9.95, 10.0]).answer == "holds"
    assert level("same", [10.0, 12.0, 8.0], [10.0, 9.0, 12.0]).answer == "undecided"
    assert level("same", [10.0, 10.1, 9.9], [14.0, 14.1, 13.9]).answer == "does not hold"


def test_aggregates_by_hand():
    # The middle half of 0..7 is 2..5.
    assert iqm_over_tasks([[0.0, 1, 2, 3], [4.0, 5, 6, 7]]).mean == 3.5
    shares = profile([[1.0, 2.0], [3.0, 4.0, 5.0, 6.0]], [0.0, 1.5, 4.5, 9.0])
    assert [found.mean for found in shares] == [1.0, 0.75, 0.25, 0.0]
    assert (shares[0].low, shares[0].high) == (1.0, 1.0)
    assert shares[1].low == 0.5  # both runs of the first task may be drawn as its worse one
    # Task 1: (1, 2) against (1): 0.75 with a tie; task 2: (3) against (4): 0.
    assert improvement_over_tasks([[1.0, 2.0], [3.0]], [[1.0], [4.0]]).mean == 0.375


def test_the_papers_numbers():
    assert published("bit-game", "bits", "poam", "N=2").mean == 48.858
    final = published("mpe-pp", "curves", "poam", "final")
    assert (final.mean, final.read_off) == (14.0, True)
    cell = published("mpe-pp", "crossplay", "vdn", "qmix")
    assert (cell.mean, cell.half_width, cell.read_off) == (8.657, 2.925, False)
    assert published("mpe-pp", "crossplay", "vdn", "nobody") is None


# -- what is measured


def test_a_linear_probe_finds_what_is_there_and_nothing_else():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 600)
    noise = rng.normal(size=(2, 600, 2, 5))
    x = noise.copy()
    x[1, :, :, 0] += 10.0 * label[:, None]  # told at the second time step only
    counts = np.ones((2, 600, 2), bool)
    counts[:, :, 1] = rng.random((2, 600)) < 0.5
    found = linear_probe(x, label, counts, np.arange(600) < 450)
    np.testing.assert_allclose(found[:, 1], np.mean(label[450:] == np.bincount(label[:450]).argmax()), atol=0.05)
    assert abs(found[0, 0] - 1 / 3) < 0.1
    assert found[1, 0] > 0.99


def test_beliefs_of_an_episode_are_those_of_its_steps(uninterrupted):
    agent = load_agent(uninterrupted / "last.safetensors")
    rng = np.random.default_rng(0)
    obs = rng.random((4, 3, 6)).astype(np.float32)
    memory, actions, step_by_step = None, [], []
    for t in range(4):
        step_by_step.append(agent.believe(obs[t], memory=memory, slot=np.arange(3)))
        action, memory = agent.act(obs[t], memory=memory, slot=np.arange(3))
        actions.append(np.asarray(action))
    seen, chances = beliefs(agent, obs, np.array(actions))
    np.testing.assert_allclose(seen, [s for s, _ in step_by_step], atol=1e-5)
    np.testing.assert_allclose(chances, [c for _, c in step_by_step], atol=1e-5)


def test_beliefs_compile_once_for_all_lengths(uninterrupted):
    """Episodes are filled up to the horizon, with what follows or with nothing: not a bit of the beliefs changes. A
    program of exactly their length may round otherwise."""
    agent = load_agent(uninterrupted / "last.safetensors")
    spec, rng = agent.spec, np.random.default_rng(1)
    obs = rng.random((spec.horizon, 3, spec.obs_size)).astype(np.float32)
    actions = rng.integers(0, spec.num_actions, (spec.horizon, 3)).astype(np.int32)
    whole = beliefs(agent, obs, actions)
    programs = modelling._believe._cache_size()
    found = {steps: beliefs(agent, obs[:steps], actions[:steps]) for steps in (1, 3, spec.horizon - 1)}
    assert modelling._believe._cache_size() == programs
    before = np.concatenate([[[NO_ACTION] * 3], actions[:-1]]).astype(np.int32)
    for steps, found_then in found.items():
        exact = modelling._believe(agent.policy, agent.params, agent.decoders, obs[:steps], before[:steps])
        for cut, full, unfilled in zip(found_then, whole, exact, strict=True):
            np.testing.assert_array_equal(cut, full[:steps])
            np.testing.assert_allclose(cut, unfilled, rtol=1e-5, atol=1e-6)


def test_the_demo_makes_a_page(tmp_path, monkeypatch):
    """In small: an untrained team beside a shipped one, episodes with beliefs; called again, it trains nothing."""
    monkeypatch.setattr(demonstration, "run_config", lambda *names: shrunk(run_config(*names)))
    settings = demonstration.Demo(steps=1200, episodes=2, out=tmp_path)
    page, _ = demonstration.demo(settings)
    text = page.read_text()
    for said in ("How does it do with strangers?", "after 1,200 steps", "after 998,400 earns", "changes its mind"):
        assert said in text
    run = tmp_path / "mpe-pp/poam/seed0/last.safetensors"
    before = run.stat().st_mtime_ns
    demonstration.demo(settings)
    assert run.stat().st_mtime_ns == before
    assert page.read_text() == text
