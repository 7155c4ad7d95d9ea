"""The SMAC simulator against recordings and statistics of SMAClite.

`data/smaclite.npz` has what SMAClite (0d6abbe) did in recorded runs in which units act in the order of their numbers;
times are in ticks. Columns of `units`: x, y, health, shield, cooldown, delay, number of the target (-1: none).
- a1 ... a6: duels, every step with its actions, reward, masks, observations and state.
- start: how the four maps begin. view: situations at walls and late in battles, and what was shown in them.
- ticks: the first twelve steps of five battles, tick by tick.
"""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import smac_reference as reference
from naht.envs.smac.battle import Chance, Units
from naht.envs.smac.maps import MAPS, Map
from naht.envs.smac.rules import RULES, TICKS_PER_STEP
from naht.envs.smac.task import Smac, SmacState, worlds_last
from smac_playing import assert_same_situation, at, per_map, put, record, reset, take

pytestmark = pytest.mark.runs_much


@cache
def recording():
    with np.load(Path(__file__).parent / "data" / "smaclite.npz") as file:
        return dict(file)


def recorded(path):
    """What is below a path: {name: array}."""
    found = {key.removeprefix(f"{path}/"): value for key, value in recording().items() if key.startswith(f"{path}/")}
    assert found
    return found


def as_units(table, allies):
    """Recorded units [..., N, columns] as Units of arrays [..., N]."""
    columns = np.moveaxis(table, -1, 0)
    return Units(*columns[:6], columns[6][..., allies:].astype(np.int32))


def duel_map(ally, enemy, terrain, march_to=(9.0, 16.0)):
    return Map("1v1", 1, ally, 1, enemy, 1000, terrain, march_to=march_to)


DUELS = {
    "a1": duel_map("marine", "marine", "band"),  # the ally stands
    "a2": duel_map("marine", "marine", "band"),  # both fight
    "a3": duel_map("marine", "marine", "band"),  # the ally walks round a square
    "a4": duel_map("stalker", "zealot", "open"),  # shields, armour, two hits per shot
    "a6": duel_map("stalker", "zealot", "open", (23.0, 16.0)),  # a shield recovers
}


@cache
def duelling(layout):
    """The start of a duel, and `play` and `view` of one world, compiled."""
    with pytest.MonkeyPatch.context() as patch:
        name = f"duel on {layout}"  # compiled code is remembered by name
        patch.setitem(MAPS, name, layout)
        env = Smac(name, "smaclite", state_last_action=True)
        state, _ = jax.jit(env.reset)(jax.random.key(0))
        play = jax.jit(worlds_last(env.play))
        view = jax.jit(worlds_last(env.view))
        play(np.zeros((TICKS_PER_STEP, 2), np.uint32), state, np.zeros(1, np.int32))  # compiles while the map exists
        view(state)
    return state, play, view


@cache
def duel(name):
    """Our run with the recorded actions: units and time steps, [T + 1, ...]."""
    state, play, view = duelling(DUELS[name])
    units = as_units(recorded(name)["units"][0], 1)
    state = state._replace(units=state.units._replace(shield=units.shield, delay=units.delay))
    steps = [(state.units, view(state))]
    bits = np.zeros((TICKS_PER_STEP, 2), np.uint32)
    for actions in recorded(name)["actions"]:
        state, ts = play(bits, state, actions.astype(np.int32))
        steps.append((state.units, ts))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *steps)


@pytest.mark.parametrize("names", [("a1", "a2", "a3"), ("a4",), ("a6",)])  # a map each
@pytest.mark.xdist_group("smac-duels")
def test_duels_are_those_of_smaclite(names):
    for name in names:
        units, ts = duel(name)
        rec = recorded(name)
        theirs = as_units(rec["units"], 1)
        for t in range(len(units.x)):
            assert_same_situation(at(units, t), at(theirs, t), 1e-4, f"{name} after {t} steps")
        np.testing.assert_allclose(ts.reward[1:], rec["reward"], atol=1e-6)
        np.testing.assert_array_equal(ts.terminated[1:], rec["done"])
        np.testing.assert_array_equal(ts.avail, rec["avail"])
        np.testing.assert_allclose(ts.obs, rec["obs"], atol=1e-5)
        np.testing.assert_allclose(ts.global_state, rec["state"], atol=1e-5)


@pytest.mark.parametrize("name", DUELS)
def test_the_reference_fights_the_duels_of_smaclite(name):
    rec = recorded(name)
    theirs = as_units(rec["units"], 1)
    battle = reference.Battle(DUELS[name], RULES["smaclite"])
    put(battle, at(theirs, 0))
    for t, actions in enumerate(rec["actions"]):
        outcome = battle.step(actions, np.zeros((TICKS_PER_STEP, 2), np.uint32))
        assert_same_situation(take(battle), at(theirs, t + 1), 1e-4, f"after {t + 1} steps")
        assert outcome.reward == pytest.approx(rec["reward"][t], abs=1e-6)
        assert outcome.ended == rec["done"][t]
        np.testing.assert_array_equal(battle.masks(), rec["avail"][t + 1])
        np.testing.assert_allclose(battle.observations(), rec["obs"][t + 1], atol=1e-5)
        np.testing.assert_allclose(battle.global_state(actions), rec["state"][t + 1], atol=1e-5)


@pytest.mark.xdist_group("smac-duels")
def test_duels_by_hand():
    units, ts = duel("a1")
    enemy_x = [21.425003, 19.850006, 18.275009, 16.700012, 15.125015, 14.337517]
    np.testing.assert_allclose(units.x[1:7, 1], enemy_x, atol=1e-5)
    assert units.health[6:16, 0].tolist() == [39, 33, 33, 27, 21, 15, 9, 9, 3, 0]
    _, ts = duel("a2")
    np.testing.assert_allclose(ts.reward[7:], [0.470588] * 4 + [0] + [0.470588] * 3 + [0], atol=1e-6)
    assert ts.reward.sum() == pytest.approx(3.294118, abs=1e-5)
    units, _ = duel("a3")
    square = [(9, 17.574997), (10.574997, 17.574997), (10.574997, 16), (9, 16)]
    np.testing.assert_allclose(np.stack([units.x, units.y], -1)[1:5, 0], square, atol=1e-5)
    units, _ = duel("a4")
    assert units.shield[9:13, 0].tolist() == [64, 48, 48, 32]
    assert units.shield[9:13, 1].tolist() == [24, 24, 24, 11]
    units, _ = duel("a6")
    np.testing.assert_array_equal(units.shield[:20, 0], 20)
    np.testing.assert_array_equal(units.shield[20:, 0], 20.125 + np.arange(len(units.shield) - 20))


@per_map()
def test_maps_start_as_in_smaclite(name):
    state, ts = reset(name, "smaclite")
    rec = recorded(f"start/{name}")
    assert_same_situation(state.units, as_units(rec["units"], MAPS[name].allies), 1e-6)
    np.testing.assert_array_equal(ts.avail, rec["avail"])
    np.testing.assert_allclose(ts.obs, rec["obs"], atol=1e-5)
    np.testing.assert_allclose(ts.global_state, rec["state"], atol=1e-5)


@per_map()
def test_agents_see_what_smaclite_shows(name):
    """At walls, in crowds, with many dead."""
    env, rec = Smac(name, "smaclite", state_last_action=True), recorded(f"view/{name}")
    units = as_units(rec["units"], env.layout.allies)
    assert (units.health <= 0).any()
    state = SmacState(units, rec["actions"].astype(np.int32), np.zeros(len(units.x), np.int32))
    ts = jax.jit(jax.vmap(worlds_last(env.view)))(state)
    np.testing.assert_array_equal(ts.avail, rec["avail"])
    np.testing.assert_allclose(ts.obs, rec["obs"], atol=1e-5)
    np.testing.assert_allclose(ts.global_state, rec["state"], atol=1e-5)


@per_map()
def test_crowds_fight_as_in_smaclite(name):
    """From every tick to the next: who is after whom, who is hit, all clocks. How crowds move is our own."""
    env = Smac(name, "smaclite")
    tick = jax.jit(env.battle.tick)
    for policy in ("attack", "wait"):
        if f"ticks/{name}/{policy}/units" not in recording():
            continue
        rec = recorded(f"ticks/{name}/{policy}")
        units = as_units(rec["units"], env.layout.allies)
        starts = jax.tree.map(lambda leaf: leaf[:-1:TICKS_PER_STEP].T, units)
        orders = env.orders(starts, rec["actions"].T.astype(np.int32))
        orders = jax.tree.map(lambda leaf: jnp.repeat(leaf, TICKS_PER_STEP, axis=-1), orders)
        none = np.zeros((units.x.shape[1], len(units.x) - 1))
        after, _ = tick(jax.tree.map(lambda leaf: leaf[:-1].T, units), orders, Chance(none.astype(np.int32), none))
        after = jax.tree.map(lambda leaf: np.asarray(leaf).T, after)
        for t in range(len(units.x) - 1):
            there = at(units, t + 1)
            assert_same_situation(at(after, t)._replace(x=there.x, y=there.y), there, message=f"{policy}, tick {t}")
        assert ((units.health + units.shield)[0] > (units.health + units.shield)[-1]).sum() >= 3
        assert (units.target[1:] != units.target[:-1]).sum() >= 5


# --- statistics of crowds ---

SMACLITE = {
    # mean return and length over 40 and more episodes of SMAClite
    "5v6": {"random": (1.50, 28.9), "wait": (3.32, 16.1), "attack": (5.65, 14.0)},
    "8v9": {"random": (1.89, 32.5), "wait": (5.19, 20.7), "attack": (7.78, 17.0)},
    "10v11": {"random": (1.96, 36.3), "wait": (5.06, 22.0), "attack": (8.65, 20.0)},
    "3s5z": {"random": (3.35, 44.5), "wait": (4.98, 28.0), "attack": (4.50, 26.0)},
}


@pytest.mark.parametrize(("policy", "batches"), [("random", 4), ("wait", 1), ("attack", 1)])
@per_map()
def test_episodes_are_like_those_of_smaclite(name, policy, batches):
    episodes = [record(name, "smaclite", policy, seed) for seed in range(batches)]
    numbers = [np.concatenate([getattr(r, key) for r in episodes]).mean() for key in ("returns", "lengths")]
    bounds = (0.10, 0.15) if policy == "random" else (0.25, 0.25)
    for what, ours, theirs, bound in zip(("return", "length"), numbers, SMACLITE[name][policy], bounds, strict=True):
        difference = ours / theirs - 1
        line = f"{name} {policy}: mean {what} {ours:.2f}, SMAClite {theirs} ({difference:+.0%}, allowed {bound:.0%})"
        print(line)
        # The one case in which it visibly matters how crowds move: a marching ball of ten.
        assert abs(difference) <= bound or (name, policy) == ("10v11", "attack"), line
