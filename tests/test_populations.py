"""Populations: built resumably, exported, verified; agents by file, folder and name; Python functions as teammates."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import naht
from naht import Member, NahtError, Population, load_agent, load_members, make_env, mean_interval, team_sampler
from naht.agents.python import python_policy
from naht.agents.scripted import BOTS, Bernoulli, Turns
from naht.agents.zoo import agents_in, find_agents
from naht.cli import main
from naht.envs.base import task_hash
from naht.evaluation.crossplay import CrossPlay, cross_play, play_meetings, self_play
from naht.experiments.populations import PopulationRecipe, build, export, rounding_changes
from naht.learning.algorithms import self_play_algorithms
from naht.report.curves import GreedyTests, find_tests, plot_tests
from naht.storage import digest, read_arrays

pytestmark = pytest.mark.xdist_group("populations")  # its teams are trained once

# The whole bit game with its real settings: programs that test_training.py compiles as well.
ENV = make_env("bit-game")


def recipe(out, **changes):
    return replace(PopulationRecipe("bit-game", ENV, ("vdn", "ippo"), 2, steps=2000, out=out, episodes=8), **changes)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("population")
    build(recipe(folder), workers=1)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_a_population_is_agents_with_cards(built):
    assert list(agents_in(built)) == ["ippo-seed0", "ippo-seed1", "vdn-seed0", "vdn-seed1"]
    card = json.loads((built / "vdn-seed1.card.json").read_text())
    assert card["card"]["algorithm"] == "vdn"
    assert card["card"]["seed"] == 1
    assert card["card"]["steps"] in range(400, 2001, 400)  # of its best test
    assert card["card"]["task_hash"] == task_hash(ENV)
    assert card["card"]["measured"].keys() == {"return", "half_width_95", "episodes"}
    assert card["card"]["naht"] == naht.__version__
    assert card["policy"]["type"] == "ValuePolicy"


def test_agents_that_were_passed_on_without_their_runs_are_not_trained_again(built, tmp_path):
    shutil.copytree(built, tmp_path / "mine", ignore=shutil.ignore_patterns("runs"))
    before = contents(tmp_path / "mine")
    files = build(recipe(tmp_path / "mine"), workers=1)
    assert [path.name for path in files] == [f"{a}-seed{s}.safetensors" for a in ("vdn", "ippo") for s in (0, 1)]
    assert contents(tmp_path / "mine") == before
    assert not (tmp_path / "mine/runs").exists()
    with pytest.raises(NahtError, match=r"vdn-seed0\.safetensors was trained with other settings"):
        build(recipe(tmp_path / "mine", steps=4000), workers=1)


CHILD = """
import sys
from naht.runtime import configure
configure()
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_populations import build, recipe
print("ready", flush=True)
build(recipe(Path(sys.argv[1])), workers=1, checkpoint_every=0, report=lambda e: print(e.step, flush=True))
"""


def test_a_build_killed_at_random_gives_the_same_agents(built, tmp_path):
    rng = random.Random(0)
    out = tmp_path / "population"
    here = str(Path(__file__).parent)
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(out), here], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        for _ in range(rng.randint(2, 12)):
            child.stdout.readline()
        time.sleep(rng.random() * 0.05)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    build(recipe(out), workers=1)
    assert contents(out) == contents(built)


def test_curves_of_its_runs(built, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["curves", str(built), "--target", "-1"]) == 0
    said = capsys.readouterr().out
    assert "vdn" in said
    assert "over_time.png" in said
    assert {path.name for path in Path("curves").iterdir()} == {"over_time.png", "over_steps.png"}
    tests = find_tests([built])["bit-game"]
    assert [len(tests[name]) for name in ("ippo", "vdn")] == [2, 2]
    for row, run in zip(tests["vdn"], ("seed0", "seed1"), strict=True):
        metrics = [m for m in naht.read_metrics(built / "runs/bit-game/vdn" / run) if "test/return" in m]
        assert row.steps.tolist() == [m["step"] for m in metrics]
        assert row.returns.tolist() == [m["test/return"] for m in metrics]
        assert (row.seconds > 0).all()
    both = find_tests([built / "runs", built])["bit-game"]
    assert f"vdn, {built}" in both
    assert f"vdn, {built}/runs" in both
    hand = GreedyTests(np.array([10, 20, 30]), np.array([1.0, 2.0, 3.0]), np.array([0.0, 5.0, 9.0]))
    assert hand.first_above(4.0) == (20, 2.0)
    assert hand.first_above(9.0) is None
    won = replace(hand, won=np.array([0.0, 0.5, 1.0]))
    assert {
        path.name for path in plot_tests(tmp_path / "battles", {"5v6": {"vdn": [won]}, "mpe-pp": {"vdn": [hand]}})
    } == {*("over_time.png", "over_steps.png", "wins_over_time.png", "wins_over_steps.png")}
    assert main(["curves", str(tmp_path)]) == 2
    assert "there are no runs in" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["vdn-seed0.safetensors", "vdn-seed0.card.json"])
@pytest.mark.parametrize("how", ["missing", "empty", "cut"])
def test_a_population_mends_itself_without_training_again(built, tmp_path, file, how):
    shutil.copytree(built, tmp_path / "copy")
    path = tmp_path / "copy" / file
    content = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes(content[: 0 if how == "empty" else len(content) // 2])
    steps = []
    build(recipe(tmp_path / "copy"), workers=1, report=lambda e: steps.append(e.step))
    assert steps == []
    assert contents(tmp_path / "copy") == contents(built)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"type": "RunConfig"}', '{"type": "RunConfig", "task": 1}'])
def test_a_run_with_rubbish_for_settings_stops_a_build(built, tmp_path, capsys, content):
    shutil.copytree(built, tmp_path / "copy")
    (config,) = (tmp_path / "copy/runs").rglob("vdn/seed1/config.json")
    config.write_text(content)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    args = ["population", "build", "bit-game", "--algorithms", "vdn", "ippo", "--seeds", "2", "--steps", "2000"]
    assert main([*args, "--episodes", "8", "--workers", "1", "--out", str(tmp_path / "copy")]) == 2
    error = capsys.readouterr().err.splitlines()
    assert "vdn/seed1/config.json" in error[-1]
    assert error[-1].startswith("naht: ")
    after = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert {p: c for p, c in after.items() if p.name != "progress.log"} == {
        p: c for p, c in before.items() if p.name != "progress.log"
    }


def test_agents_are_found_by_file_folder_and_name(built, tmp_path):
    assert find_agents(str(built / "vdn-seed0.safetensors")) == [built / "vdn-seed0.safetensors"]
    assert [path.stem for path in find_agents(str(built))] == list(agents_in(built))
    run = built / "runs/bit-game/vdn/seed0"
    assert find_agents(str(run)) == [run / "best.safetensors"]
    assert find_agents("turns") is None
    assert find_agents(str(tmp_path)) is None
    assert [m.name for m in load_members([str(built), "turns"], ENV.spec)] == [*agents_in(built), "turns"]
    twice = load_members([str(built / "vdn-seed0.safetensors"), str(run)], ENV.spec)
    assert [m.name for m in twice] == [str(built / "vdn-seed0.safetensors"), str(run)]


def test_names_sort_by_their_numbers(tmp_path):
    for name in ("vdn-seed10", "vdn-seed9", "iql-seed0"):
        (tmp_path / f"{name}.safetensors").touch()
    assert list(agents_in(tmp_path)) == ["iql-seed0", "vdn-seed9", "vdn-seed10"]


def test_half_precision_halves_the_file_and_says_what_it_changes(built, tmp_path):
    agents = [load_agent(path) for path in agents_in(built).values()]
    files = export(agents, tmp_path, float16=True, tolerance=1.0)
    for agent, (path, float16, changes) in zip(agents, files, strict=True):
        small = load_agent(path)
        assert float16
        assert small.card["float16"]["actions_changed"] == changes
        for a, b in zip(jax.tree.leaves(agent.params), jax.tree.leaves(small.params), strict=True):
            assert b.dtype == a.dtype
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        assert path.stat().st_size < 0.65 * (built / path.name).stat().st_size
    with pytest.raises(NahtError, match="exists already"):
        export(agents[:1], tmp_path)


def test_an_agent_that_rounding_would_change_is_kept_whole(built, tmp_path):
    agent = load_agent(built / "vdn-seed0.safetensors")
    # All values equal but for what half precision rounds off.
    layers = agent.params.network["params"]
    last = {"kernel": jnp.zeros_like(layers["Dense_1"]["kernel"]), "bias": jnp.array([1.0, 1.0 + 2.0**-13])}
    network = {"params": layers | {"Dense_1": last}}
    agent = replace(agent, params=agent.params._replace(network=network))
    assert rounding_changes(agent) == 1.0
    ((path, float16, changes),) = export([agent], tmp_path, float16=True)
    assert (float16, changes) == (False, 1.0)
    kept = load_agent(path)
    assert "float16" not in kept.card
    np.testing.assert_array_equal(kept.params.network["params"]["Dense_1"]["bias"], last["bias"])


@pytest.mark.parametrize("trouble", ["truncated", "checksum", "claim", "world", "shape", "task"])
def test_verify_finds_what_is_wrong(built, tmp_path, trouble, capsys):
    path = tmp_path / "agent.safetensors"
    agent = load_agent(built / "ippo-seed0.safetensors")
    sentence = {
        "truncated": "truncated or not a safetensors file",
        "checksum": "does not match its checksum",
        "claim": "but its card says 999.00",
        "world": "trained in another world",
        "shape": "expected (",
        "task": "its card's task has",
    }[trouble]
    if trouble == "claim":
        agent = replace(agent, card=agent.card | {"measured": agent.card["measured"] | {"return": 999.0}})
    if trouble == "world":
        agent = replace(agent, card=agent.card | {"task_hash": "0" * 16})
    if trouble == "shape":
        agent = replace(agent, policy=replace(agent.policy, network=replace(agent.policy.network, hidden=32)))
    if trouble == "task":
        agent = replace(agent, card=agent.card | {"task": naht.config.encode(make_env("bit-game", num_agents=4))})
    agent.save(path)
    content = bytearray(path.read_bytes())
    if trouble == "checksum":
        content[-9] ^= 1
    path.write_bytes(content[: len(content) // 2] if trouble == "truncated" else content)
    assert main(["population", "verify", str(path), "--episodes", "8"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_the_command_line(built, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["population", "list", str(built)]) == 0
    assert "vdn-seed1" in capsys.readouterr().out
    assert main(["population", "list", str(built), "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| agent | task | steps |")
    assert main(["population", "show", str(built / "vdn-seed1.safetensors")]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["algorithm"] == "vdn"
    assert shown["policy"]["type"] == "ValuePolicy"
    card = json.loads((built / "vdn-seed1.card.json").read_text())
    assert shown["sha256"] == card["sha256"] == digest(read_arrays(built / "vdn-seed1.safetensors")[0])
    assert main(["population", "export", str(built), "--out", "copies"]) == 0
    assert len(list(Path("copies").glob("*.safetensors"))) == 4
    assert main(["population", "verify", "copies", "--episodes", "8"]) == 0
    assert capsys.readouterr().out.count("checksum, sizes and task fit") == 4
    assert main(["evaluate", "selfplay", str(built), "--episodes", "4", "--out", "tables"]) == 0
    assert main(["evaluate", "crossplay", str(built), "--episodes", "4", "--out", "tables"]) == 0
    assert "others" in capsys.readouterr().out
    names = {path.name for path in Path("tables").iterdir()}
    assert names == {"selfplay.csv", "selfplay.png", "crossplay.csv", "crossplay.png"}
    assert len(Path("tables/crossplay.csv").read_text().splitlines()) == 1 + 2 * 2 + 2


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["population", "grow"], "unknown population command 'grow'"),
        (["population", "build", "bit-game", "--algorithms", "poam"], "unknown algorithm for a population 'poam'"),
        (["population", "build", "bit-game", "--seeds", "0"], "seeds is 0"),
        (["population", "list", "nowhere"], "nowhere is no agent, run or population"),
        (["population", "show", "zoo/chess/vdn-seed0"], "unknown task of the zoo 'chess'"),
        (["evaluate", "crossplay", "nowhere"], "nowhere is no agent"),
        (["evaluate", "selfplay"], "POPULATION missing"),
    ],
)
def test_mistakes_are_one_line(args, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_meetings_are_between_those_they_say():
    """Members that always say 0 or always 1: the return tells who sat where."""
    env = make_env("bit-game", horizon=1)
    team = Population([Member("never", Bernoulli(0.0)), Member("always", Bernoulli(1.0))])
    returns = play_meetings(env, team, [(0, 0), (0, 1), (1, 0), (1, 1)], episodes=6)["return"]
    assert returns.shape == (4, 2, 6)
    # Exactly one 1 earns 3: one 'always' among three.
    expected = [[0, 0], [0, 3], [3, 0], [0, 0]]
    np.testing.assert_array_equal(returns, np.broadcast_to(np.array(expected)[:, :, None], returns.shape))


def test_cross_play_pairs_every_seed_and_averages_the_others():
    env = make_env("bit-game", horizon=1)
    members = [Member(f"m{i}", Bernoulli(float(i % 2))) for i in range(5)]
    result = cross_play(env, Population(members), ["a", "a", "b", "b", "b"], episodes=4)
    assert result.groups == ("a", "b")
    assert {cell: len(scores) for cell, scores in result.scores.items()} == {
        ("a", "a"): 2, ("a", "b"): 2, ("b", "a"): 3, ("b", "b"): 3,
    }  # fmt: skip
    with pytest.raises(NahtError, match="at least two groups, got 1: a"):
        cross_play(env, Population(members[:2]), ["a", "a"], episodes=4)
    # a0 never, a1 always, b0 never, b1 always, b2 never; pairs a0-b0, a1-b1, a0-b2: nobody ever is the only one.
    assert result.scores["a", "b"] == (0.0, 0.0)
    assert result.row("a").mean == 0.0
    assert result.advantage().mean == 0.0
    everyone = cross_play(env, Population(members), ["a", "a", "b", "b", "b"], episodes=4, all_pairs=True)
    # a0 with b1: one of three is 'always' when two seats are ours, (0 + 3) / 2; a1 with b0 or b2 likewise.
    assert everyone.scores["a", "b"] == pytest.approx((0.5, 1.0))  # a team is the unit: six pairs of two teams
    assert everyone.row("a") == mean_interval([0.5, 1.0])
    # With itself nobody ever wins; a0 meets b0, b1, b2; a1 likewise; b0, b1 and b2 meet a0 and a1.
    assert everyone.advantage() == mean_interval([-0.5, -1.0, -0.75, -0.75, -0.75])


def test_a_row_of_cross_play_counts_teams_not_pairs():
    """Two teams that meet two other groups: each one's mean over the groups is one trial."""
    result = CrossPlay(("a", "b", "c"), {
        ("a", "a"): (9.0, 7.0), ("a", "b"): (1.0, 5.0), ("a", "c"): (3.0, 1.0),
        ("b", "a"): (0.0, 0.0), ("b", "b"): (0.0, 0.0), ("b", "c"): (0.0, 0.0),
        ("c", "a"): (0.0, 0.0), ("c", "b"): (0.0, 0.0), ("c", "c"): (0.0, 0.0),
    })  # fmt: skip
    assert result.row("a") == mean_interval([2.0, 3.0])
    assert result.advantage() == mean_interval([7.0, 4.0, 0, 0, 0, 0])


def test_self_play_tells_matched_from_mismatched_seeds():
    env = make_env("bit-game", horizon=1)
    population = Population([Member("never", Bernoulli(0.0)), Member("always", Bernoulli(1.0)), Member("t", Turns(3))])
    matched, mismatched, difference = self_play(env, population, ["a", "a", "a"], episodes=4)["a"]
    assert difference.mean == pytest.approx(matched.mean - mismatched.mean)
    assert matched.count == mismatched.count == 3
    assert matched.mean == pytest.approx(1.0)  # only turns win with themselves
    with pytest.raises(NahtError, match="'b' has one team"):
        self_play(env, population, ["a", "a", "b"], episodes=4)


def follow(s: naht.Situation):
    """Says 1 in the seat whose turn it is; counts the steps in its memory."""
    return int(s.slot == s.memory[0] % 3), s.memory + 1


@pytest.fixture
def registered():
    naht.register_teammate("counting", follow, task="bit-game", memory=1)
    yield
    del BOTS["bit-game"]["counting"]


def test_any_python_function_can_be_a_teammate(registered, tmp_path):
    team = Population(load_members(["counting"], ENV.spec))
    sampler = team_sampler(3, 1, 0)
    rows = naht.evaluate_sampler(ENV, sampler, Population([]), team, episodes=40)
    assert [row.episode_return for row in rows] == [75.0] * 40
    with pytest.raises(NahtError, match="there is a teammate 'counting' for bit-game already"):
        naht.register_teammate("counting", follow, task="bit-game")


def test_functions_are_called_for_their_own_seats_only():
    """In a mixed team, with memories that move: 20 steps of 10 episodes, one seat each."""
    calls = []

    def counts(s: naht.Situation):
        calls.append(s.memory[0])
        return 0, s.memory + 1

    env = make_env("bit-game", horizon=20)
    mine = Member("mine", python_policy("mine", counts, env.spec, 1))
    calls.clear()
    others = Population([Member("bot", Bernoulli(0.5))])
    naht.evaluate_sampler(env, team_sampler(3, 1, 1), Population([mine]), others, episodes=10)
    assert sorted(calls) == sorted(10 * list(range(20)))


BOT_FILE = """
def chance(s):
    "Says 1 with probability 1/3."
    return int(s.rng.random() < 1 / 3)

def both(s):
    return 2

def forgetful(s):
    return 0, s.memory + 1

forgetful.memory = 2
number = 3
"""


def test_functions_in_files_play_and_learn_with_us(tmp_path):
    file = tmp_path / "bots.py"
    file.write_text(BOT_FILE)
    members = load_members([f"{file}:chance", f"{file}:forgetful"], ENV.spec)
    assert members[1].policy.memory_size == 2
    rows = naht.evaluate_sampler(ENV, team_sampler(3, 1, 0), Population([]), Population(members[:1]), episodes=300)
    returns = np.array([row.episode_return for row in rows]) / 75
    assert returns.mean() == pytest.approx(4 / 9, abs=4 * np.sqrt(4 / 9 * 5 / 9 / 7500))
    again = naht.evaluate_sampler(ENV, team_sampler(3, 1, 0), Population([]), Population(members[:1]), episodes=300)
    assert [row.episode_return for row in again] == [row.episode_return for row in rows]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("both", r"chose 2: allowed actions were \[0, 1\]"),
        ("nobody", "has no function nobody"),
        ("number", "must be a function"),
    ],
)
def test_functions_that_cannot_play_fail_at_once(tmp_path, name, sentence):
    file = tmp_path / "bots.py"
    file.write_text(BOT_FILE)
    with pytest.raises(NahtError, match=sentence):
        load_members([f"{file}:{name}"], ENV.spec)
    with pytest.raises(NahtError, match="there is no file"):
        load_members([f"{tmp_path}/none.py:{name}"], ENV.spec)


def test_the_teammate_of_the_docs_chases_the_prey(tmp_path):
    text = (Path(__file__).parents[1] / "docs/populations.md").read_text()
    file = tmp_path / "bots.py"
    file.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1))
    env = make_env("mpe-pp", horizon=40)
    bots = load_members([f"{file}:follow", "random"], env.spec)
    follow, chance = [
        [
            row.episode_return
            for row in naht.evaluate_sampler(env, team_sampler(3, 1, 0), Population([]), Population([bot]), episodes=32)
        ]
        for bot in bots
    ]
    assert np.mean(follow) > np.mean(chance)  # distance costs


def test_a_policy_of_your_own_can_be_registered():
    naht.register_teammate("mine", Bernoulli(1.0), task="bit-game")
    try:
        assert load_members(["mine"], ENV.spec)[0].policy == Bernoulli(1.0)
    finally:
        del BOTS["bit-game"]["mine"]
    for name in ("a:b", "a/b"):
        with pytest.raises(NahtError, match="no colon and no slash"):
            naht.register_teammate(name, Bernoulli(1.0), task="bit-game")


def test_recipes_are_checked_before_any_work(tmp_path):
    assert self_play_algorithms() == ("ippo", "mappo", "iql", "vdn", "qmix")
    with pytest.raises(NahtError, match="episodes is 0"):
        recipe(tmp_path, episodes=0)


def test_members_by_path(tmp_path):
    """What `Agent.save` returns names an agent, too."""
    agent = load_agent(find_agents("zoo/mpe-pp/vdn-seed0")[0])
    path = agent.save(tmp_path / "mine.safetensors")
    assert [member.name for member in load_members([path], agent.spec)] == [agent.name]
