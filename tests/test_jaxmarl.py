"""JaxMARL's environments as tasks, against the real package."""

import sys
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import naht
from naht import NahtError, from_jaxmarl, load_agent, run_config, train
from naht.agents.networks import NetworkConfig
from naht.agents.recurrent import RecurrentPolicy
from naht.bridges import jaxmarl as bridge
from naht.config import decode, encode
from naht.envs.conformance import random_actions
from naht.tasks import TASKS
from probes import Stop, fingerprint, shrunk, stop_at

jaxmarl = pytest.importorskip("jaxmarl", reason="needs jaxmarl: pip install 'naht[jaxmarl]'")
pytestmark = [
    pytest.mark.xdist_group("jaxmarl"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
LIMIT = 12


@cache
def spread():
    return jaxmarl.make("MPE_simple_spread_v3", max_steps=LIMIT)


@cache
def battle(limit=LIMIT):
    """Two weak enemies that stand where their kind stands, against three."""
    from jaxmarl.environments.smax.smax_env import Scenario

    units = jnp.zeros(5, jnp.uint8)
    return jaxmarl.make("HeuristicEnemySMAX", scenario=Scenario(units, 3, 2, False, False), max_steps=limit)


def tasks():
    return {
        "spread": (spread(), from_jaxmarl(spread(), name="spread", team_reward="mean")),
        "battle": (battle(), from_jaxmarl(battle(), name="battle", team_reward="ally_0")),
    }


@pytest.mark.parametrize("which", ["spread", "battle"])
def test_its_numbers_are_the_environments_own(which):
    """Every step beside `step_env` with the same keys and allowed actions at random."""
    env, task = tasks()[which]
    agents = env.agents
    assert (task.spec.num_agents, task.spec.horizon) == (3, LIMIT)
    reset, step, act = jax.jit(task.reset), jax.jit(task.step), jax.jit(random_actions)
    key = jax.random.key(3)
    (state, shown), (seen, world) = reset(key), env.reset(key)
    for t in range(LIMIT):
        np.testing.assert_allclose(shown.obs, jnp.stack([seen[a] for a in agents]), rtol=1e-5, atol=1e-6)
        if which == "battle":
            np.testing.assert_allclose(shown.global_state, seen["world_state"], rtol=1e-5, atol=1e-6)
            allowed = env.get_avail_actions(world)
            np.testing.assert_array_equal(shown.avail, jnp.stack([allowed[a] for a in agents]).astype(bool))
        else:
            np.testing.assert_array_equal(shown.global_state, shown.obs.ravel())
            assert shown.avail.all()
        key, k_act, k_step = jax.random.split(key, 3)
        actions = act(k_act, shown.avail)
        state, shown = step(k_step, state, actions)
        seen, world, rewards, dones, _ = env.step_env(k_step, world, {a: actions[i] for i, a in enumerate(agents)})
        paid = [float(rewards[a]) for a in agents]
        assert float(shown.reward) == pytest.approx(np.mean(paid) if which == "spread" else paid[0], rel=1e-4, abs=1e-6)
        np.testing.assert_array_equal(shown.alive, [not dones[a] for a in agents])
        assert not dones["__all__"]  # its own clock would ring one step after the limit that it states
        assert (bool(shown.terminated), bool(shown.truncated)) == (False, t == LIMIT - 1)
    assert bool(env.step_env(k_step, world, {a: jnp.int32(0) for a in agents})[3]["__all__"])


@pytest.mark.parametrize("which", ["spread", "battle"])
def test_it_conforms(which):
    task = tasks()[which][1]
    naht.check_environment(task, episodes=2, worlds=32, plain=False)
    assert decode(encode(task)) == task


def fought(task, choose, key=0):
    """An episode, step by step."""
    reset, step = jax.jit(task.reset), jax.jit(task.step)
    state, shown = reset(jax.random.key(key))
    steps = [shown]
    while not (shown.terminated or shown.truncated):
        state, shown = step(jax.random.key(len(steps)), state, choose(shown))
        steps.append(shown)
    return steps


def test_the_dead_stand_still_and_a_win_is_an_end():
    """Everybody stands until enemies come, then shoots the first it can reach: three beat two, but not unharmed."""
    task = from_jaxmarl(battle(60), name="long-battle", team_reward="mean")
    stop = 4

    def shoot(shown):
        targets = np.asarray(shown.avail)[:, stop + 1 :]
        return jnp.asarray(np.where(targets.any(-1), stop + 1 + targets.argmax(-1), stop), jnp.int32)

    def idle(shown):
        return jnp.full(3, stop, jnp.int32)

    won = fought(task, shoot)
    assert bool(won[-1].terminated)
    assert not won[-1].truncated
    assert len(won) - 1 < 60
    assert won[-1].reward > 1  # the bonus for a win
    lost = fought(task, idle)
    assert bool(lost[-1].terminated)
    assert sum(float(s.reward) for s in lost) == 0
    deaths = 0
    for shown in lost[:-1]:
        for alive, allowed in zip(np.asarray(shown.alive), np.asarray(shown.avail), strict=True):
            deaths += not alive
            assert alive or np.flatnonzero(allowed).tolist() == [stop]
    assert deaths
    # A win with the last step that there is time for is a win; a step less, and time has run out.
    last = replace(task, horizon=len(won) - 1)
    assert (bool(fought(last, shoot)[-1].terminated), bool(fought(last, shoot)[-1].truncated)) == (True, False)
    short = fought(replace(task, horizon=len(won) - 2), shoot)
    assert (bool(short[-1].terminated), bool(short[-1].truncated)) == (False, True)


def test_an_end_by_its_own_clock_is_no_death():
    """The riddle ends for everybody at once, and says so agent by agent."""
    task = from_jaxmarl(jaxmarl.make("switch_riddle"), name="riddle")
    steps = fought(task, lambda _: jnp.zeros(3, jnp.int32))
    assert len(steps) - 1 == task.spec.horizon
    assert bool(steps[-1].truncated)
    assert steps[-1].alive.all()
    told = fought(task, lambda _: jnp.full(3, 2, jnp.int32))  # whoever is in the room speaks
    assert len(told) == 2
    assert (bool(told[-1].terminated), bool(told[-1].truncated)) == (True, False)


def test_sizes_that_differ_are_filled_up():
    env = jaxmarl.make("MPE_simple_speaker_listener_v4")
    task = from_jaxmarl(env, name="speaker")
    assert (task.spec.obs_size, task.spec.num_actions) == (11, 5)
    _, shown = jax.jit(task.reset)(jax.random.key(0))
    assert shown.avail.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    np.testing.assert_array_equal(shown.obs[0, 3:], np.zeros(8))


@pytest.mark.parametrize("which", ["spread", "battle"])
def test_poam_trains_with_a_stranger_and_resumes(which, tmp_path, monkeypatch):
    task = tasks()[which][1]
    policy = RecurrentPolicy(task.spec, NetworkConfig(hidden=8))
    stranger = naht.Agent("stranger", policy, policy.init(jax.random.key(0)), task.spec, {})
    path = stranger.save(tmp_path / "stranger.safetensors")
    config = shrunk(run_config(task, "poam"))
    learner = replace(config.algorithm, num_envs=2, rollout_steps=LIMIT, epochs=1)
    config = replace(config, algorithm=learner, steps=72, test_every=48, test_episodes=2, final_episodes=2, devices=1)
    config = replace(config, teams=replace(config.teams, teammates=(str(path),)))
    agent = load_agent(train(config, tmp_path / "run"))
    assert agent.spec == task.spec
    if which == "spread":
        with pytest.raises(Stop):
            train(config, tmp_path / "again", checkpoint_every=0, report=stop_at(48))
        assert any((tmp_path / "again" / "checkpoints").glob("[0-9]*"))
        with monkeypatch.context() as elsewhere:  # a process in which the name stands for another environment
            elsewhere.setattr(bridge, "_MADE", {})
            from_jaxmarl(jaxmarl.make("MPE_simple_spread_v3", max_steps=LIMIT, local_ratio=0.1), name="spread")
            with pytest.raises(NahtError, match="is not the one it began with"):
                naht.resume(tmp_path / "again")
        naht.resume(tmp_path / "again")
        assert fingerprint(tmp_path / "again") == fingerprint(tmp_path / "run")


def test_what_can_not_be_imported(monkeypatch):
    with pytest.raises(NahtError, match="env is a dict: it must be a MultiAgentEnv of JaxMARL"):
        from_jaxmarl({})
    with pytest.raises(NahtError, match="'free' lets agent_0 act by a Box: only discrete actions can be taken"):
        from_jaxmarl(jaxmarl.make("MPE_simple_spread_v3", action_type="Continuous"), name="free")
    cards = jaxmarl.make("hanabi", num_agents=3)
    with pytest.raises(NahtError, match="'cards' does not say how long its episodes are: give a horizon"):
        from_jaxmarl(cards, name="cards")
    assert [from_jaxmarl(cards, name="cards", horizon=steps).horizon for steps in (50, 90)] == [50, 90]
    with pytest.raises(NahtError, match="'storm' shows 0 no array"):
        from_jaxmarl(jaxmarl.make("storm"), name="storm", horizon=9)
    with pytest.raises(NahtError, match="unknown team_reward 'agent_9': did you mean agent_"):
        from_jaxmarl(spread(), name="spread", team_reward="agent_9")
    with pytest.raises(NahtError, match="the horizon of 'spread' is 99: it can be 12 at most"):
        from_jaxmarl(spread(), name="spread", horizon=99)
    task = from_jaxmarl(spread(), name="spread")
    assert from_jaxmarl(jaxmarl.make("MPE_simple_spread_v3", max_steps=LIMIT), name="spread") == task
    with pytest.raises(NahtError, match="'spread' already names another environment of JaxMARL here"):
        from_jaxmarl(jaxmarl.make("MPE_simple_spread_v3", max_steps=LIMIT, local_ratio=0.1), name="spread")
    with pytest.raises(NahtError, match="'spread' was made here with other sizes"):
        replace(task, obs_size=7).reset(jax.random.key(0))
    with pytest.raises(NahtError, match="'nowhere' is an environment of JaxMARL that nobody has made here: call naht"):
        replace(task, name="nowhere").reset(jax.random.key(0))
    monkeypatch.setitem(sys.modules, "jaxmarl.environments.multi_agent_env", None)
    with pytest.raises(NahtError, match=r"jaxmarl can't be used .*: pip install 'naht\[jaxmarl\]'"):
        from_jaxmarl(spread())


def test_a_registered_task_says_how_to_make_it(monkeypatch):
    naht.register_task("spread-3", naht.Task("cover the landmarks", partial(from_jaxmarl, spread(), name="spread-3")))
    try:
        task = naht.make_env("spread-3")
        known = task.fingerprint
        monkeypatch.setattr(bridge, "_MADE", {})  # as in a new process
        assert task.fingerprint == known
    finally:
        TASKS._here.pop("spread-3")
