"""Worlds outside of JAX: the same trajectories as inside, processes that die, worlds that break their promises."""

import os
import signal
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

import naht
from naht import Arena, EnvSpec, NahtError, Population, load_agent, load_members, run_config, team_sampler, train
from naht.envs.base import TimeStep
from naht.envs.bit_game import BitGame
from naht.envs.host import HostWorlds, close_worlds, open_worlds
from naht.evaluation.play import evaluate_mn
from naht.hosted import HostedArena
from naht.training.folder import read_metrics
from probes import Stop, play, reset, shrunk, stop_at

pytestmark = pytest.mark.xdist_group("host")


@pytest.fixture(autouse=True)
def _closed():
    yield
    close_worlds()


@naht.setting
@dataclass(frozen=True)
class Bits:
    """The bit game in NumPy; some episodes end early by a coin of the world's own."""

    num_agents: int = 3
    horizon: int = 25
    early: float = 0.0
    fault: str = ""

    @property
    def spec(self) -> EnvSpec:
        return BitGame(self.num_agents, self.horizon).spec

    def open(self):
        if self.fault == "start":
            raise RuntimeError("no licence\nfound")
        return BitsWorld(self)


class BitsWorld:
    def __init__(self, env):
        self.env = env

    def reset(self, seed):
        self.time, self.last = 0, np.full(self.env.num_agents, -1)
        self.rng = np.random.default_rng(None if self.env.fault == "chance" else seed)
        return self.show(0.0)

    def step(self, actions):
        assert actions.dtype == np.int32
        self.time, self.last = self.time + 1, actions
        return self.show(float(self.env.num_agents * (actions.sum() == 1)))

    def show(self, reward):
        m, fault = self.env.num_agents, self.env.fault if self.time == 3 else ""
        if fault == "exit":
            os._exit(3)
        if fault == "raise":
            raise ValueError("a wheel\nis missing")
        obs = np.concatenate([np.eye(m), np.tile(self.last, (m, 1))], axis=1)
        over = self.time > 0 and self.rng.random() < self.env.early
        return TimeStep(
            obs=obs[:, 1:] if fault == "shape" else obs * (np.nan if fault == "nan" else 1),
            global_state=np.append(self.last, np.float32(self.time / self.env.horizon)),
            avail=np.full((m, 2), fault != "mask"),
            alive=np.ones(m, bool),
            reward=reward,
            terminated=over,
            truncated=not over and self.time >= self.env.horizon and self.env.fault != "endless",
            metrics={"luck": self.rng.random()} if self.env.fault == "chance" else {},
        )

    def close(self):
        pass


def sides():
    return (Population(load_members([name], BitGame().spec)) for name in ("bernoulli:0.4", "turns"))


def test_trajectories_are_those_of_the_world_in_jax():
    """Teams, actions, memories, restarts: worlds that do the same are played the same, whatever runs them."""
    ours, theirs = sides()
    worlds = BitGame(horizon=16), Bits(horizon=16)  # whose clock is exact in binary
    inside, outside = (Arena(env, team_sampler(3, 1), ours.roster, theirs.roster, 5) for env in worlds)
    hosted = HostedArena(outside)
    expected_state, state = reset(inside, jax.random.key(1)), hosted.reset(jax.random.key(1))
    for k in (2, 3):  # twice 20 steps: episodes end in both parts, and go on from one to the other
        expected_state, expected = play(inside, ours.params, theirs.params, expected_state, jax.random.key(k), 20)
        state, trajectory = hosted.play(ours.params, theirs.params, state, jax.random.key(k), 20)
        assert jax.tree.structure(trajectory) == jax.tree.structure(expected)
        for part, wanted in zip(jax.tree.leaves(trajectory), jax.tree.leaves(expected), strict=True):
            assert part.dtype == wanted.dtype
            np.testing.assert_array_equal(part, wanted)
    assert hosted.in_play(state)
    for name in ("team", "seating", "last_action", "first", "episode_return", "episode_length"):
        jax.tree.map(np.testing.assert_array_equal, getattr(state, name), getattr(expected_state, name))


def test_episodes_restart_one_by_one():
    ours, theirs = sides()
    hosted = HostedArena(Arena(Bits(early=0.2), team_sampler(3, 1), ours.roster, theirs.roster, 4))
    state, tr = hosted.play(ours.params, theirs.params, hosted.reset(jax.random.key(0)), jax.random.key(1), 40)
    ended = np.asarray(tr.done)
    assert 4 < ended.sum(1).max() + ended.sum() < 160  # not all at once
    np.testing.assert_array_equal(tr.first[1:], ended[:-1])
    start = np.asarray(tr.obs)[np.asarray(tr.first)]
    assert (start[..., 3:] == -1).all()
    changed = (np.asarray(tr.team.controlled)[1:] != np.asarray(tr.team.controlled)[:-1]).any(-1)
    assert changed.any()
    assert not (changed & ~ended[:-1]).any()
    # A resumed run has only the seeds: it begins the same episodes again, with the same teams.
    assert hosted.in_play(state)
    again = hosted.rewind(state)
    np.testing.assert_array_equal(again.env_state, state.env_state)
    np.testing.assert_array_equal(again.team.controlled, state.team.controlled)
    assert np.asarray(again.first).all()
    assert (np.asarray(again.episode_length) == 0).all()
    assert hosted.in_play(again)
    assert not hosted.in_play(state)


@pytest.mark.parametrize("count", [1, 3])
def test_the_same_seeds_are_the_same_episodes_however_many_processes(count):
    shown = []
    for processes in (1, 2):
        worlds = HostWorlds(Bits(early=0.3), count, processes)
        worlds.reset(np.ones(count, bool), np.arange(count, dtype=np.uint32))
        shown.append([worlds.step(np.zeros((count, 3), np.int32)) for _ in range(5)])
        worlds.close()
    jax.tree.map(np.testing.assert_array_equal, *shown)


def run(env, **changes):
    config = shrunk(run_config(env, "ippo-naht"))
    learner = replace(config.algorithm, num_envs=4, rollout_steps=10)
    config = replace(config, algorithm=learner, steps=160, test_every=80, test_episodes=6, final_episodes=6, devices=1)
    return replace(config, teams=replace(config.teams, teammates=("turns",)), **changes)


def test_training_stopping_and_going_on(tmp_path):
    config = run(Bits(early=0.1))
    train(config, tmp_path / "whole")
    with pytest.raises(Stop):
        train(config, tmp_path / "cut", checkpoint_every=0, report=stop_at(80))
    close_worlds()  # as in a new process
    told = []
    naht.resume(tmp_path / "cut", report=lambda event: told.append(event.message))
    assert "resumed at step 40; the episodes in flight begin again" in told
    whole, cut = (read_metrics(tmp_path / name) for name in ("whole", "cut"))
    assert [row["train/return"] for row in whole[:1]] == [row["train/return"] for row in cut[:1]]
    assert [row["step"] for row in whole] == [row["step"] for row in cut] == [40, 80, 120, 160]
    agent = load_agent(tmp_path / "cut")
    ours = Population([naht.Member("ours", agent.policy, agent.params)])
    strangers = Population(load_members(["turns"], agent.spec))
    rows = [evaluate_mn(env, ours, strangers, episodes=8, common=True) for env in (Bits(), BitGame())]
    assert [row.episode_return for row in rows[0]] == [row.episode_return for row in rows[1]]


def test_a_killed_world_ends_the_run_with_a_sentence_and_a_checkpoint(tmp_path):
    config = run(Bits())

    def kill(event):
        if event.step == 80 and event.message is None:
            victim = open_worlds(config.task, 4, "training").processes[0]
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()

    with pytest.raises(
        NahtError, match=r"a process that runs worlds of 'bit-game' has ended \(exit code -9\); the run"
    ):
        train(config, tmp_path / "run", report=kill, checkpoint_every=1e9)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["000000000080"]
    naht.resume(tmp_path / "run")
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [40, 80, 120, 160]


FAULTS = {
    "start": "a world of 'bit-game' failed: RuntimeError: no licence found",
    "raise": "a world of 'bit-game' failed: ValueError: a wheel is missing",
    "shape": r"'bit-game' gave obs of shape \(3, 5\), not \(3, 6\)",
    "nan": "'bit-game' gave obs that is not finite",
    "mask": "'bit-game' leaves an agent without any allowed action",
    "exit": r"a process that runs worlds of 'bit-game' has ended \(exit code 3\)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_worlds_that_break_their_promises(fault):
    def use():
        worlds = open_worlds(Bits(fault=fault), 2)
        worlds.reset(np.ones(2, bool), np.zeros(2, np.uint32))
        for _ in range(3):
            worlds.step(np.zeros((2, 3), np.int32))

    with pytest.raises(NahtError, match=FAULTS[fault]):
        use()


def test_conformance():
    naht.check_environment(Bits(early=0.1))
    with pytest.raises(NahtError, match="does not conform: the same seed and the same actions give another episode"):
        naht.check_environment(Bits(fault="chance"))
    with pytest.raises(NahtError, match="no episode end within the horizon of 25 steps"):
        naht.check_environment(Bits(fault="endless"))


def test_one_device_learns(tmp_path):
    with pytest.raises(NahtError, match="devices is 2: worlds of 'bit-game' run outside of JAX, and one device learns"):
        train(run(Bits(), devices=2), tmp_path / "run")
