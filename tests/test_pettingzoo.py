"""PettingZoo and Gymnasium, both ways, against the real packages."""

import warnings
from dataclasses import replace
from functools import partial

import cma
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from mpe2 import simple_speaker_listener_v4
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test
from pettingzoo.test.seed_test import parallel_seed_test

import naht
from naht import NahtError, from_pettingzoo, load_agent, run_config, to_gymnasium, to_pettingzoo, train
from naht.agents.networks import NetworkConfig
from naht.agents.recurrent import RecurrentPolicy
from naht.config import decode, encode
from naht.envs.bit_game import BitGame
from naht.envs.host import close_worlds, open_worlds
from naht.tasks import TASKS
from probes import shrunk

pytestmark = pytest.mark.xdist_group("pettingzoo")
TEAMS = {"bit-game": ("bernoulli", "turns"), "mpe-pp": ("chaser", "zoo/seed1")}


@pytest.fixture(autouse=True)
def _closed():
    yield
    close_worlds()


@pytest.mark.parametrize(
    ("task", "inside"),
    [*[(task, False) for task in TASKS], *[(task, True) for task in ("bit-game", "mpe-pp", "3m", "lbf")]],
)
def test_every_task_passes_pettingzoos_own_tests(task, inside):
    teammates = TEAMS.get(task, ("nearest",)) if inside else ()

    def make():
        return to_pettingzoo(task, teammates=teammates, num_controlled=2 if inside else None)

    env = make()
    assert len(env.possible_agents) == (2 if inside else naht.make_env(task).spec.num_agents)
    parallel_api_test(env, num_cycles=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of Gymnasium: a dict of agents is compared as a whole
        parallel_seed_test(make, num_cycles=60)


def test_the_dead_stay_or_leave():
    """On 3m against three, somebody falls soon if nobody shoots."""
    for remove in (False, True):
        env = to_pettingzoo("3m", remove_dead=remove)
        parallel_api_test(env, num_cycles=100)
        seen, infos = env.reset(seed=3)
        lost = 0
        while env.agents:
            before = list(env.agents)
            assert isinstance(env.observation_space("agent_0"), spaces.Dict)
            actions = {a: int(not seen[a]["action_mask"][0]) for a in env.agents}  # stop, or nothing
            seen, rewards, terminated, _, infos = env.step(actions)
            assert set(rewards) == set(before)
            assert len(set(rewards.values())) == 1
            dead = [a for a in before if not infos[a]["alive"]]
            for agent in dead:
                assert seen[agent]["action_mask"].tolist() == [1] + [0] * 8
                assert terminated[agent] or not remove
            lost += len(dead)
        assert lost
        assert {"battle_won", "seat", "team"} <= set(infos[before[0]])


def test_strangers_inside_play_as_in_an_arena():
    """Seats, names and N change by episode; what strangers do is what they do."""
    env = to_pettingzoo("bit-game", teammates=("static", "turns"))
    drawn = set()
    for episode in range(12):
        _, infos = env.reset(seed=episode)
        team = infos["agent_0"]["team"]
        drawn.add(tuple(team))
        seats = [infos[agent]["seat"] for agent in env.agents]
        assert [i for i, name in enumerate(team) if name == "you"] == seats
        for t in range(3):
            seen, rewards, *_ = env.step(dict.fromkeys(env.agents, 0))
            others = {"static": [1, 0, 0], "turns": [int(t % 3 == i) for i in range(3)]}
            expected = [0 if name == "you" else others[name][i] for i, name in enumerate(team)]
            np.testing.assert_array_equal(seen["agent_0"][3:], expected)
            assert set(rewards.values()) == {3.0 * (sum(expected) == 1)}
    assert len(drawn) > 4
    assert env.state().shape == env.state_space.shape


def test_our_world_and_the_exported_one_are_one():
    """Predator-prey by our arena's own functions, and through the door: same seed, same numbers."""
    env, again = to_pettingzoo("mpe-pp"), to_pettingzoo("mpe-pp")
    seen, _ = env.reset(seed=5)
    twin, _ = again.reset(seed=5)
    for t in range(20):
        np.testing.assert_array_equal(seen["agent_2"], twin["agent_2"])
        actions = {f"agent_{i}": (t + i) % 5 for i in range(3)}
        (seen, *_), (twin, *_) = env.step(actions), again.step(actions)
    assert not np.array_equal(seen["agent_0"], env.reset(seed=6)[0]["agent_0"])
    other, _ = again.reset()  # without a seed the stream goes on
    assert not np.array_equal(other["agent_0"], env.reset()[0]["agent_0"])


@pytest.mark.parametrize("task", ["bit-game", "mpe-pp", "3m"])
def test_one_agent_among_strangers_passes_gymnasiums_check(task):
    env = to_gymnasium(task, teammates=TEAMS.get(task, ("nearest",)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(infinity|render|spec).*")
        check_env(env, skip_render_check=True)


@pytest.mark.runs_much
def test_an_outside_learner_learns_among_strangers():
    """CMA-ES, which knows nothing of us, on a linear policy of what one agent sees."""
    env = to_gymnasium(BitGame(horizon=5), teammates=("static",))  # of whom the one in the first seat says 1

    def loss(weights: list[float], episodes: int = 6) -> float:
        matrix, earned = np.reshape(weights, (2, 7)), 0.0
        for episode in range(episodes):
            seen, _ = env.reset(seed=episode)
            over = False
            while not over:
                seen, reward, terminated, truncated, _ = env.step(int((matrix @ np.append(seen, 1.0)).argmax()))
                earned += reward
                over = terminated or truncated
        return -earned / episodes

    best = cma.CMAEvolutionStrategy(14 * [0.0], 1.0, {"seed": 1, "popsize": 8, "verbose": -9})
    for _ in range(8):
        asked = best.ask()
        best.tell(asked, [loss(weights) for weights in asked])
    assert loss(14 * [0.0], 30) > -12
    assert loss(best.result.xbest, 30) == -15  # it says 1 where it sits first, and only there


def test_what_can_not_be_exported():
    with pytest.raises(NahtError, match="unknown task 'mpe-ppp'"):
        to_pettingzoo("mpe-ppp")
    with pytest.raises(NahtError, match="one agent needs teammates"):
        to_gymnasium("mpe-pp", teammates=())
    with pytest.raises(NahtError, match="N is 4: a team of 3"):
        to_pettingzoo("bit-game", teammates=("turns",), num_controlled=4)
    env = to_pettingzoo("bit-game")
    env.reset(seed=0)
    with pytest.raises(NahtError, match="no action for agent_1, agent_2"):
        env.step({"agent_0": 1})


# -- from PettingZoo

SPREAD = "mpe2.simple_spread_v3:parallel_env"


def test_spread_is_a_task_like_any_other(tmp_path):
    """Of mpe2: trained with a scripted stranger, saved, loaded, evaluated."""
    task = from_pettingzoo(SPREAD, name="spread", team_reward="mean", N=3, max_cycles=12)
    assert (task.spec.num_agents, task.spec.num_actions, task.spec.horizon) == (3, 5, 12)
    naht.check_environment(task)
    assert decode(encode(task)) == task
    config = shrunk(run_config(task, "poam"))
    learner = replace(config.algorithm, num_envs=4, rollout_steps=12)
    config = replace(config, algorithm=learner, steps=96, test_every=48, test_episodes=4, final_episodes=4, devices=1)
    policy = RecurrentPolicy(task.spec, NetworkConfig(hidden=8))
    stranger = naht.Agent("stranger", policy, policy.init(jax.random.key(0)), task.spec, {})
    path = stranger.save(tmp_path / "stranger.safetensors")
    config = replace(config, teams=replace(config.teams, teammates=(str(path),)))
    agent = load_agent(train(config, tmp_path / "run"))
    rows = naht.evaluate_mn(
        task,
        naht.Population([naht.Member("ours", agent.policy, agent.params)]),
        naht.Population(naht.load_members([str(path)], task.spec)),
        episodes=2,
    )
    assert len(rows) == 4
    assert all(row.length == 12 for row in rows)


def test_agents_of_a_foreign_game_die(tmp_path, monkeypatch):
    """PettingZoo's knights and archers, whom zombies kill: the world says who lives, and training goes on among them.
    With zombies in every step: by default an episode depends on the one before it, which the check notices."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    game = "pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env"
    task = from_pettingzoo(game, name="zombies", max_cycles=300, spawn_delay=1, max_zombies=60)
    naht.check_environment(task)
    world = task.open()
    shown, before = world.reset(0), 4
    rng, deaths = np.random.default_rng(1), 0
    while not (shown.terminated or shown.truncated):
        shown = world.step(np.where(shown.alive, rng.integers(0, 6, 4), 0))
        living = int(np.sum(shown.alive))
        assert living <= before
        if shown.terminated or shown.truncated:
            break
        before, deaths = living, deaths + before - living
        assert [name for name, alive in zip(world.names, shown.alive, strict=True) if alive] == list(world.env.agents)
        for avail, alive in zip(shown.avail, shown.alive, strict=True):
            assert alive or avail.tolist() == [True, *[False] * (len(avail) - 1)]
    assert deaths > 0
    config = shrunk(run_config(task, "ippo"))
    learner = replace(config.algorithm, num_envs=2, rollout_steps=20)
    config = replace(config, algorithm=learner, steps=80, test_every=80, test_episodes=2, final_episodes=2, devices=1)
    assert load_agent(train(config, tmp_path / "run")).spec == task.spec


def test_watching_a_foreign_environment(tmp_path):
    """With the pictures that it gives, or without any."""
    policy = None
    for settings in ({"render_mode": "rgb_array"}, {}):
        task = from_pettingzoo(SPREAD, name="seen", team_reward="mean", N=3, max_cycles=6, **settings)
        policy = policy or RecurrentPolicy(task.spec, NetworkConfig(hidden=8))
        members = [naht.Member(name, policy, policy.init(jax.random.key(k))) for k, name in enumerate(("us", "them"))]
        ours, theirs = (naht.Population([member]) for member in members)
        replays = naht.record(task, ours, theirs, num_controlled=1, episodes=2, seed=3)
        assert [replay.length for replay in replays] == [6, 6]
        assert replays[0].actions.shape == (6, 3)
        assert sorted(replays[1].seats) == ["them", "them", "us"]
        naht.save_replay(replays, tmp_path / "film.png")
        frame = np.asarray(naht.draw_frame(replays[0], 6))[:520, :520]
        if settings:
            assert replays[0].states.shape[0] == 7
            assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 20
        close_worlds()


def test_its_numbers_are_the_environments_own():
    """Every step beside the environment itself, in agents' own sizes: rewards, observations, the end."""
    make = partial(simple_speaker_listener_v4.parallel_env, max_cycles=9)
    for how, combine in (("sum", sum), ("mean", np.mean), ("speaker_0", lambda r: r[0])):
        text = "mpe2.simple_speaker_listener_v4:parallel_env"
        task = from_pettingzoo(text, name="speaker", team_reward=how, max_cycles=9)
        assert (task.spec.obs_size, task.spec.num_actions) == (11, 5)
        worlds, real = open_worlds(task, 2), make()
        shown = worlds.reset(np.ones(2, bool), np.array([7, 8], np.uint32))
        seen, _ = real.reset(seed=8)
        for t in range(9):
            for i, agent in enumerate(real.possible_agents):
                size, count = len(seen[agent]), real.action_space(agent).n
                np.testing.assert_allclose(shown.obs[1, i, :size], seen[agent], rtol=1e-6)
                assert not shown.obs[1, i, size:].any()
                assert shown.avail[1, i].tolist() == [True] * count + [False] * (5 - count)
            actions = np.array([[0, 0], [t % 3, t % 5]], np.int32)
            shown = worlds.step(actions)
            seen, rewards, *_ = real.step(dict(zip(real.possible_agents, actions[1].tolist(), strict=True)))
            assert shown.reward[1] == pytest.approx(combine(list(rewards.values())), rel=1e-5)
            assert shown.truncated.tolist() == [t == 8] * 2
        assert not shown.terminated.any()
        close_worlds()


def test_there_and_back_again():
    """Our map exported, with masks and deaths, and imported: every number arrives."""
    task = from_pettingzoo(
        partial(to_pettingzoo, "3m", remove_dead=True), name="3m-again", team_reward="mean", horizon=60
    )
    assert task.spec.num_actions == 9
    ours = naht.to_pettingzoo("3m")
    world = task.open()
    shown, (seen, infos) = world.reset(4), ours.reset(seed=4)
    while not (shown.terminated or shown.truncated):
        for i, agent in enumerate(ours.possible_agents):
            assert bool(shown.alive[i]) == infos[agent]["alive"]
            if shown.alive[i]:
                np.testing.assert_array_equal(shown.obs[i], seen[agent]["observation"])
                np.testing.assert_array_equal(shown.avail[i], seen[agent]["action_mask"])
            else:
                assert shown.avail[i].tolist() == [True] + 8 * [False]
        np.testing.assert_array_equal(shown.global_state, ours.state())
        actions = np.array([int(np.flatnonzero(row)[-1]) for row in shown.avail], np.int32)
        shown = world.step(actions)
        told = dict(zip(ours.possible_agents, actions.tolist(), strict=True))
        seen, rewards, terminated, truncated, infos = ours.step(told)
        assert shown.reward == pytest.approx(rewards["agent_0"])
    assert not ours.agents
    assert (bool(shown.terminated), bool(shown.truncated)) == (any(terminated.values()), any(truncated.values()))


class Faulty(ParallelEnv):
    """Small, and wrong in a way of one's choice."""

    metadata = {"name": "faulty"}  # noqa: RUF012 (as PettingZoo has it)
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, fault=""):
        self.fault, self.max_cycles = fault, 4
        self.agents = []

    def observation_space(self, agent):
        return spaces.Text(5) if self.fault == "text" else spaces.Box(-1, 1, (2,))

    def action_space(self, agent):
        return spaces.Box(-1, 1, (2,)) if self.fault == "continuous" else spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.time = ["a", "b"], 0
        return {a: np.zeros(2) for a in "ab"}, {"a": {}, "b": {}}

    def step(self, actions):
        self.time += 1
        width = 3 if self.fault == "wide" else 2
        seen = {a: np.full(width, np.nan if self.fault == "nan" else 0.0) for a in "ab"}
        infos = {a: {"action_mask": np.ones(7 if self.fault == "mask" else 3)} for a in "ab"}
        over = dict.fromkeys("ab", self.time >= 4 and self.fault != "endless")
        if over["a"]:
            self.agents = []
        return seen, dict.fromkeys("ab", 1.0), dict.fromkeys("ab", False), over, infos


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("continuous", "'faulty' lets a act by Box"),
        ("text", "'faulty' shows a a Text: only boxes and discrete numbers can be read"),
        ("wide", "'faulty' shows a 3 numbers, not 2"),
        ("nan", "'faulty' gave obs that is not finite"),
        ("mask", "'faulty' masks 7 actions of a, who has 3"),
    ],
)
def test_environments_that_do_not_fit(fault, message):
    def use():
        worlds = open_worlds(from_pettingzoo(partial(Faulty, fault)), 1)
        worlds.reset(np.ones(1, bool), np.zeros(1, np.uint32))
        worlds.step(np.zeros((1, 2), np.int32))

    with pytest.raises(NahtError, match=message):
        use()


def test_an_environment_without_end_is_cut():
    world = from_pettingzoo(partial(Faulty, "endless"), horizon=6).open()
    world.reset(0)
    ends = [bool(world.step(np.zeros(2, np.int32)).truncated) for _ in range(6)]
    assert ends == [False] * 5 + [True]


def test_what_can_not_be_imported():
    with pytest.raises(NahtError, match="make can't be sent to another process"):
        from_pettingzoo(lambda: None)
    with pytest.raises(NahtError, match="'nowhere:nothing' names no function"):
        from_pettingzoo("nowhere:nothing")
    with pytest.raises(NahtError, match="unknown team_reward 'agent_9': did you mean agent_"):
        from_pettingzoo(SPREAD, team_reward="agent_9")
    with pytest.raises(NahtError, match="make made a dict: it must make a ParallelEnv"):
        from_pettingzoo(dict)
    task = replace(from_pettingzoo("mpe2.simple_reference_v3:parallel_env", name="known"), name="unknown")
    with pytest.raises(NahtError, match="'unknown' is an environment of PettingZoo that nobody has made here: call"):
        task.open()


def test_a_registered_task_says_how_to_make_its_worlds(monkeypatch):
    from naht.bridges import pettingzoo

    naht.register_task(
        "spread-3", naht.Task("cover the landmarks", partial(from_pettingzoo, SPREAD, name="spread-3", N=3))
    )
    try:
        task = naht.make_env("spread-3")
        monkeypatch.setattr(pettingzoo, "_MAKERS", {})  # as in a new process
        task.open().close()
    finally:
        TASKS._here.pop("spread-3")
