"""Battles on a page: what is shown is what happened, and what an agent may know says where it thinks others are."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import naht
from naht.agents.scripted import Soldier, UniformRandom
from naht.envs.smac.maps import SIZE
from naht.envs.smac.rules import SIGHT
from naht.envs.smac.task import Smac, SmacState
from naht.report import episodes
from naht.report.episodes import as_episode, change_of_mind, read_episodes, worth_watching, write_episodes
from naht.report.packing import pack_episode
from naht.report.recording import record
from naht.report.worlds import believed_in_battle, believed_offsets, show_battle

WORLDS = 256


def scattered(env, seed=0):
    """Many worlds with units anywhere, some of them dead: places [W, N, 2], alive [W, N], observations [W, A, O]."""
    rng = np.random.default_rng(seed)
    start = env.battle.start()
    n = start.x.shape[0]
    x, y = rng.uniform(0, SIZE, (2, n, WORLDS)).astype(np.float32)
    alive = rng.random((n, WORLDS)) < 0.8
    health = np.where(alive, rng.uniform(0.05, 1, (n, WORLDS)) * env.battle.each("health"), 0).astype(np.float32)
    whole = jax.tree.map(lambda leaf: jnp.repeat(leaf, WORLDS, axis=1), start)
    units = whole._replace(x=jnp.asarray(x), y=jnp.asarray(y), health=jnp.asarray(health))
    a = env.spec.num_agents
    state = SmacState(units, jnp.zeros((a, WORLDS), jnp.int32), jnp.zeros((WORLDS,), jnp.int32))
    obs = np.moveaxis(np.asarray(jax.jit(env.view)(state).obs), -1, 0)
    return np.stack([x.T, y.T], axis=-1), alive.T, obs


def sees(places, alive, k):
    """Whom agent k sees, itself included: [W, N]."""
    apart = np.hypot(*np.moveaxis(places - places[:, [k]], -1, 0))
    return alive & alive[:, [k]] & (apart < SIGHT)


@pytest.mark.parametrize("name", ["5v6", "3s5z"])
def test_sightings_are_the_units_in_sight(name):
    env = Smac(name)
    places, alive, obs = scattered(env)
    for seat in range(env.spec.num_agents):
        table = env.sightings(obs[:, seat], seat)
        seen = sees(places, alive, seat)
        np.testing.assert_array_equal(table[..., 4] > 0, seen)
        offset = SIGHT * table[..., 2:4]
        np.testing.assert_allclose(offset[seen], (places - places[:, [seat]])[seen], atol=1e-4)


@pytest.mark.parametrize("name", ["5v6", "3s5z"])
@pytest.mark.parametrize("chance", [1.0, 0.7])
def test_true_observations_put_teammates_where_they_are(name, chance):
    """Exactly those of whom something tells: a unit that both see, or the agent itself. An unsure decoder
    predicts a mean of seeing and not seeing."""
    env = Smac(name)
    m = env.spec.num_agents
    places, alive, obs = scattered(env)
    beyond_sight = 0
    for seat in range(m):
        others = [k for k in range(m) if k != seat]
        found = believed_offsets(env, seat, obs[:, seat], chance * obs[:, others])
        ours = sees(places, alive, seat)
        for i, k in enumerate(others):
            common = ours & sees(places, alive, k) & (np.arange(places.shape[1]) != k)
            told = common.any(1)
            np.testing.assert_array_equal(np.isfinite(found[:, i]).all(-1), told)
            np.testing.assert_allclose(found[told, i], (places[:, k] - places[:, seat])[told], atol=2e-4)
            beyond_sight += (told & ~ours[:, k] & alive[:, k]).sum()
        assert np.isnan(believed_offsets(env, seat, obs[:, seat], 0.4 * obs[:, others])).all()
    assert beyond_sight > 20


def test_what_the_agent_sees_of_a_teammate_is_not_taken_for_the_model():
    env = Smac("5v6")
    places, alive, obs = scattered(env)
    blind = obs[:, 0].copy()
    first_ally = 4 + 5 * 6
    blind[:, first_ally : first_ally + 5] = 0  # does not see agent 1
    seen_by_others = obs[:, 1:]
    assert sees(places, alive, 0)[:, 1].any()
    one, other = (believed_offsets(env, 0, own, seen_by_others) for own in (obs[:, 0], blind))
    np.testing.assert_array_equal(one[:, 0], other[:, 0])


@pytest.fixture(scope="module")
def battles():
    """Soldiers with one who does anything, on 5v6."""
    ours = naht.Population([naht.Member("soldier", Soldier("weakest"))])
    theirs = naht.Population([naht.Member("random", UniformRandom())])
    return record(Smac("5v6"), ours, theirs, num_controlled=3, episodes=6, seed=4)


def test_health_is_lost_to_shots_and_to_nothing_else(battles):
    for replay in battles:
        shown, health = show_battle(replay), replay.states.units.health
        aims, fired = shown["aims"], shown["fired"]
        for t in range(replay.length):
            hits = np.bincount(aims[t][fired[t]], minlength=health.shape[1])
            np.testing.assert_array_equal(health[t] - health[t + 1], np.minimum(6 * hits, health[t]))
            shooters = np.flatnonzero(fired[t])
            assert (health[t, shooters] > 0).all()
            apart = shown["places"][t : t + 2, shooters] - shown["places"][t : t + 2, aims[t, shooters]]
            # Of a step's beginning and end, one is no further away than what both can walk in it.
            assert (np.hypot(*np.moveaxis(apart, -1, 0)).min(0) < shown["reach"] + 2.3).all()
        assert not fired[aims < 0].any()
    assert len({replay.length for replay in battles}) > 1


def test_a_battle_says_who_falls_and_how_it_ends(battles):
    for replay in battles:
        shown = show_battle(replay)
        fallen = [(t, what) for t, what in shown["events"] if what.endswith("falls")]
        assert len(fallen) == (replay.states.units.health[-1] <= 0).sum()
        for t, what in fallen:
            kind, number, _ = what.split()
            k = int(number) - 1 + (5 if kind == "enemy" else 0)
            assert shown["health"][t, k] == 0 < shown["health"][t - 1, k]
        won = replay.metrics["battle_won"][-1] > 0
        assert shown["outcome"] == ("won" if won else "lost")
        assert shown["events"][-1] == (replay.length, f"the battle is {shown['outcome']}")
        assert shown["units"] == ("marine",) * 11
        assert len(shown["action_names"]) == replay.env.spec.num_actions
    assert show_battle(battles[0])["shield"] is None


def in_the_know(monkeypatch):
    """An agent whose model is always right about what its teammates see, and expects anything of them."""

    def beliefs(agent, obs, action):
        m = obs.shape[1]
        others = np.array([[k for k in range(m) if k != seat] for seat in range(m)])
        return obs[:, others], np.full((*obs.shape[:2], m - 1, 12), 1 / 12, np.float32)

    monkeypatch.setattr(episodes, "beliefs", beliefs)
    return SimpleNamespace(decoders={"some": 1}, name="oracle", policy=Soldier("weakest"), params=())


def test_beliefs_end_with_a_life(battles, monkeypatch, tmp_path):
    agent = in_the_know(monkeypatch)
    for replay in battles:
        episode = as_episode(replay, agent, method="oracle", strangers="random")
        assert [b.seat for b in episode.beliefs] == np.flatnonzero(replay.controlled).tolist()
        alive = episode.health[:-1] > 0
        for belief in episode.beliefs:
            others = list(belief.teammates)
            asked = alive[:, [belief.seat]] & alive[:, others]
            np.testing.assert_array_equal(np.isfinite(belief.chances).all(-1), asked)
            told = np.isfinite(belief.places).all(-1)
            assert not told[~asked].any()
            assert told[asked].mean() > 0.9
            np.testing.assert_allclose(belief.places[told], episode.places[:-1, others][told], atol=1e-3)
        assert change_of_mind(episode) == pytest.approx(0, abs=1e-6)
    write_episodes(tmp_path / "one.json.gz", [episode])
    (back,) = read_episodes(tmp_path / "one.json.gz")
    for name in ("places", "health", "running_return"):
        np.testing.assert_allclose(getattr(back, name), getattr(episode, name), atol=6e-4)
    for name in ("aims", "fired", "actions"):
        np.testing.assert_array_equal(getattr(back, name), getattr(episode, name))
    for name in ("units", "ground", "sight", "reach", "outcome", "events"):
        assert getattr(back, name) == getattr(episode, name)
    np.testing.assert_allclose(back.beliefs[0].places, episode.beliefs[0].places, atol=6e-4)


def test_battles_worth_watching_are_picked(monkeypatch):
    agent = in_the_know(monkeypatch)
    strangers = naht.Population([naht.Member("random", UniformRandom())])
    shown = worth_watching(Smac("5v6"), agent, strangers, method="oracle", episodes=8, seed=0)
    assert [e.label for e in shown] == ["typical", "best", "worst", "changes its mind"]
    typical, best, worst, _ = (e.episode_return for e in shown)
    assert worst <= typical <= best
    for episode in shown:
        assert episode.outcome in ("won", "lost")
        assert len(episode.places) == len(episode.actions) + 1 <= 71
        packed = pack_episode(episode)
        assert packed["outcome"] == episode.outcome
        assert len(packed["bytes"]) < 20_000


def test_beliefs_do_not_read_the_state_of_teammates(battles):
    """Only the agent's own place, which says where its picture of the world lies."""
    replay = battles[0]
    seat = int(replay.controlled.argmax())
    others = [k for k in range(5) if k != seat]
    units = replay.states.units
    moved = np.where(np.arange(11) == seat, units.x, units.x + 3)
    elsewhere = replace(replay, states=replay.states._replace(units=units._replace(x=moved)))
    seen = replay.obs[:-1, others]
    np.testing.assert_array_equal(believed_in_battle(replay, seat, seen), believed_in_battle(elsewhere, seat, seen))
