"""Agents of the simulator play in the real SMAC as they are. StarCraft II is not here: a stand-in takes its place."""

import csv
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

from naht import (
    Agent,
    Arena,
    Member,
    NahtError,
    Population,
    evaluate_mn,
    load_agent,
    load_members,
    run_config,
    team_sampler,
    train,
)
from naht.agents.networks import NetworkConfig
from naht.agents.recurrent import RecurrentPolicy
from naht.cli import main
from naht.config import decode, encode
from naht.envs.bit_game import BitGame
from naht.envs.host import close_worlds
from naht.envs.smac.maps import MAPS
from naht.envs.smac.starcraft import StarCraft, in_starcraft
from naht.envs.smac.task import NO_OP, STOP, Smac
from naht.evaluation.play import evaluate_sampler
from naht.evaluation.statistics import mean_interval
from naht.hosted import HostedArena
from naht.training.folder import read_config
from probes import shrunk
from starcraft_standin import StarCraft2Env, game_key, install

pytestmark = pytest.mark.xdist_group("starcraft")  # its programs are compiled once

ENV = StarCraft("3m", seed=0)
SIMULATOR = Smac("3m")
simulate = jax.jit(SIMULATOR.step)


@pytest.fixture
def game(monkeypatch):
    """The stand-in's class; nothing is running yet."""
    close_worlds()
    yield install(monkeypatch)
    close_worlds()


def save(folder, name, task, seed):
    policy = RecurrentPolicy(task.spec, NetworkConfig(hidden=8))
    card = {"task": encode(task), "config": {"teams": {"teammates": []}}}
    return Agent(name, policy, policy.init(jax.random.key(seed)), task.spec, card).save(folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two agents for 3m."""
    folder = tmp_path_factory.mktemp("agents")
    return [str(save(folder, name, SIMULATOR, seed)) for seed, name in enumerate(("ours", "theirs"))]


@pytest.fixture
def teams(files):
    """Controlled and uncontrolled, as `naht evaluate` loads them."""
    return tuple(Population(load_members([file], ENV.spec)) for file in files)


def same(shown, expected):
    """Time steps with equal contents."""
    for name, value in expected._asdict().items():
        if name != "metrics":
            np.testing.assert_allclose(getattr(shown, name), value, rtol=1e-6, atol=1e-7, err_msg=name)
    assert {k: float(v) for k, v in shown.metrics.items()} == {k: float(v) for k, v in expected.metrics.items()}


@pytest.mark.parametrize("name", MAPS)
def test_sizes_are_those_of_the_simulator(name, game):
    assert StarCraft(name).spec == Smac(name).spec
    shown = StarCraft(name).open().reset(0)
    same(shown, jax.jit(Smac(name).reset)(jax.random.key(0))[1])
    assert decode(encode(StarCraft(name))) == StarCraft(name)


def test_an_agent_of_the_simulator_plays_in_a_mixed_team(game, tmp_path):
    task = Smac("5v6")
    ours, theirs = (load_agent(save(tmp_path, name, task, seed)) for seed, name in enumerate(("ours", "theirs")))
    env = in_starcraft(task)
    assert env.spec == ours.spec
    controlled, uncontrolled = (Population([Member(a.name, a.policy, a.params)]) for a in (ours, theirs))
    rows = evaluate_mn(env, controlled, uncontrolled, episodes=2, num_controlled=[2])
    assert [sorted(row.seats) for row in rows] == 2 * [["*ours"] * 2 + ["theirs"] * 3]
    for row in rows:
        assert 1 <= row.length <= 70
        assert 0 <= row.episode_return <= 20
        assert row.metrics["dead_allies"] == 5 or row.length == 70 or row.metrics["battle_won"]
    (there,) = game.made
    assert (there.map_name, there.seed(), there.continuing_episode) == ("5m_vs_6m", there.seed(), True)


def test_an_agent_trained_in_the_simulator_plays_as_it_is(game, tmp_path, capsys):
    """A few updates, then the command."""
    train(shrunk(run_config("5v6", "mappo")), tmp_path / "run")
    call = ["evaluate", str(tmp_path / "run"), "--world", "starcraft", "--teammates", "nearest", "weakest"]
    assert main([*call, "--episodes", "1"]) == 0
    assert "win rate" in capsys.readouterr().out
    (there,) = game.made
    assert there.resets >= 4  # an episode for each N of 1 to 4


def test_all_arrives_unchanged_in_order_and_once(game, teams):
    """Two rollouts in a row over several episodes; the stand-in's chance is known, so all can be computed again."""
    ours, theirs = teams
    arena = HostedArena(Arena(ENV, team_sampler(3, 1), ours.roster, theirs.roster, 1))
    state = arena.reset(jax.random.key(1))
    parts = []
    for k in (2, 3):
        state, part = arena.play(ours.params, theirs.params, state, jax.random.key(k), 65)
        parts.append(jax.device_get(part))
    tr = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:, 0], *[p._replace(start_memory=()) for p in parts])
    done = tr.terminated | tr.truncated
    ends = int(done.sum())
    assert ends >= 2
    (there,) = game.made
    assert (there.launches, there.resets, there.steps, there.closes) == (1, 1 + ends, 130, 0)

    assert len({tuple(team) for team in tr.team.controlled}) > 1  # mixed teams, drawn for every episode
    for t in range(130):
        if tr.first[t]:
            world, view = SIMULATOR.reset(jax.random.key(0))
        np.testing.assert_array_equal(tr.obs[t], view.obs)
        np.testing.assert_array_equal(tr.avail[t], view.avail)
        np.testing.assert_array_equal(tr.alive[t], view.alive)
        np.testing.assert_array_equal(tr.global_state[t], view.global_state)
        world, view = simulate(game_key(0, t), world, tr.action[t])
        np.testing.assert_array_equal(tr.next_obs[t], view.obs)
        np.testing.assert_allclose(tr.reward[t], view.reward, rtol=1e-6)
        assert (tr.terminated[t], tr.truncated[t]) == (bool(view.terminated), bool(view.truncated))
        assert {name: value[t] for name, value in tr.metrics.items()} == view.metrics


def test_evaluations_in_a_row_use_one_game(game, teams):
    total = 0
    for seed in (0, 1):
        rows = evaluate_mn(ENV, *teams, episodes=2, seed=seed)
        assert [(row.num_controlled, row.episode) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
        assert all(sum(name == "*ours" for name in row.seats) == row.num_controlled for row in rows)
        total += sum(row.length for row in rows)
    (there,) = game.made
    assert there.launches == 1
    assert there.steps == total


def test_the_returns_are_those_of_the_simulator(game, teams):
    """The same team in both worlds, whose chance differs."""
    ours, theirs = teams
    sampler = team_sampler(3, 1, 1)
    there, here = (
        mean_interval([row.episode_return for row in evaluate_sampler(env, sampler, ours, theirs, episodes=episodes)])
        for env, episodes in ((ENV, 24), (SIMULATOR, 256))
    )
    assert there.mean == pytest.approx(here.mean, abs=2 * (there.half_width + here.half_width))


def test_the_command(game, files, tmp_path, capsys):
    ours, theirs = files
    call = ["evaluate", ours, "--teammates", theirs, "--world", "starcraft", "--episodes", "2"]
    assert main([*call, "--out", str(tmp_path / "rows.csv")]) == 0
    assert "mean return" in capsys.readouterr().out
    with open(tmp_path / "rows.csv") as f:
        rows = list(csv.DictReader(f))
    assert [(row["task"], row["num_controlled"]) for row in rows] == [("3m", "1")] * 2 + [("3m", "2")] * 2
    assert len(game.made) == 1


def test_other_tasks_are_refused(game, tmp_path, capsys):
    path = save(tmp_path, "bits", BitGame(), 0)
    assert main(["evaluate", str(path), "--world", "starcraft"]) == 2
    assert "'bit-game' can't be played in StarCraft II: only the SMAC maps can, 3m" in capsys.readouterr().err
    assert game.made == []
    with pytest.raises(NahtError, match="unknown map '5v7': did you mean 5v6"):
        StarCraft("5v7")


class NotInstalled(StarCraft2Env):
    def _launch(self):
        raise FileNotFoundError("Failed to find SC2 binary\nat any place")


class Larger(StarCraft2Env):
    def get_obs_size(self):
        return super().get_obs_size() + 3


class Nothing:
    """Finds no `smac`, whatever is installed."""

    @staticmethod
    def find_spec(name, *_):
        if name == "smac":
            raise ModuleNotFoundError("No module named 'smac'", name=name)


def without_smac(monkeypatch):
    monkeypatch.delitem(sys.modules, "smac")
    monkeypatch.delitem(sys.modules, "smac.env")
    monkeypatch.setattr(sys, "meta_path", [Nothing, *sys.meta_path])


def with_optimiser(monkeypatch):
    optimiser = ModuleType("smac")
    optimiser.__path__ = []
    optimiser.HyperparameterOptimizationFacade = object
    monkeypatch.setitem(sys.modules, "smac", optimiser)
    monkeypatch.delitem(sys.modules, "smac.env")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_smac, r"through SMAC, which is not installed: pip install git\+https://github.com/oxwhirl/smac.git"),
        (with_optimiser, "'smac' is not SMAC but the optimiser that has this name on PyPI: pip uninstall smac, then"),
        (
            lambda m: install(m, NotInstalled),
            r"does not start: Failed to find SC2 binary; the game belongs in \$SC2PATH",
        ),
        (lambda m: install(m, Larger), "another 3m than ours: obs_shape is 33, not 30"),
    ],
)
def test_what_is_missing_is_one_line(change, message, game, files, monkeypatch, capsys):
    change(monkeypatch)
    with pytest.raises(NahtError, match=message):
        ENV.open().reset(0)
    assert main(["evaluate", files[0], "--world", "starcraft"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("naht: ")
    assert "\n" not in said


def test_unavailable_actions_are_stop_and_no_op(game):
    """The real environment refuses them; the simulator does not mind."""
    world = ENV.open()
    shown = world.reset(0)
    state, view = SIMULATOR.reset(jax.random.key(0))
    (there,) = game.made
    told = []
    there.step = lambda actions: told.append(actions) or StarCraft2Env.step(there, actions)
    wrong = [np.array(a) for a in ([0, 6, 99], [-1, 7, 0], [8, 11, 6])]
    for t in range(60):
        same(shown, view)
        actions = wrong[t % 3]
        shown = world.step(actions)
        state, view = simulate(game_key(0, t), state, actions)
        if shown.terminated:
            break
    assert not shown.alive.any()
    assert {a for actions in told for a in actions} >= {NO_OP, STOP}
    assert there.steps == t + 1


def test_running_out_of_time(game):
    """In a far corner nobody is found."""
    world = ENV.open()
    shown = world.reset(0)
    for t in range(60):
        assert not shown.terminated | shown.truncated
        shown = world.step(np.full(3, 5 if t < 9 else 2))
    assert (bool(shown.terminated), bool(shown.truncated)) == (False, True)
    assert shown.alive.all()


def test_a_first_episode_that_is_left_costs_a_new_game(game):
    """SMAC would start a second game beside the first, and pay rewards on a wrong scale."""
    world = ENV.open()
    for _ in range(2):
        world.reset(0)
        world.reset(0)  # nobody has acted: it is the same episode
        world.step(np.full(3, STOP))
    assert [(there.launches, there.closes, there.max_reward) for there in game.made] == [(1, 1, 365), (1, 0, 365)]


class Lost(StarCraft2Env):
    def step(self, actions):
        return (0, True, {}) if self.steps == 4 else super().step(actions)


def test_a_lost_connection_is_no_result(game, teams, monkeypatch):
    install(monkeypatch, Lost)
    with pytest.raises(NahtError, match=r"^StarCraft II lost its connection in the middle of an episode"):
        evaluate_mn(ENV, *teams, episodes=1, num_controlled=[1])
    assert [there.closes for there in Lost.made] == [1]
    install(monkeypatch)
    assert len(evaluate_mn(ENV, *teams, episodes=1, num_controlled=[1])) == 1  # in a new game


def test_games_have_seeds_of_their_own_and_are_closed(game):
    worlds = [StarCraft("3m").open() for _ in range(2)]
    for seed, world in enumerate(worlds):
        world.reset(seed)
        world.close()
    assert [(there.seed(), there.closes) for there in game.made] == [(0, 1), (1, 1)]


def test_training_in_several_games(tmp_path, monkeypatch):
    """Every environment of a run is a game in some process; agents and resume are like anywhere."""
    package = tmp_path / "smac" / "env"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("from starcraft_standin import StarCraft2Env")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    config = shrunk(run_config(StarCraft("3m"), "ippo-naht"))
    learner = replace(config.algorithm, num_envs=2, rollout_steps=8)
    config = replace(config, algorithm=learner, steps=32, test_every=16, test_episodes=2, final_episodes=2, devices=1)
    folder = train(config, tmp_path / "run")
    assert read_config(folder).task == StarCraft("3m")
    assert load_agent(folder).spec == SIMULATOR.spec
    close_worlds()
