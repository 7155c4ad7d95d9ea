"""The SMAC simulator against a sequential implementation in plain NumPy: every step, and who is first."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import smac_reference as reference
from naht import check_environment
from naht.envs.smac.battle import NOBODY, Battle, Chance, Units
from naht.envs.smac.maps import MAPS, Map
from naht.envs.smac.rules import RULES
from naht.envs.smac.task import Smac
from smac_playing import DOUBTFUL, NAMES, assert_same_situation, at, per_map, put, record, reset, take

pytestmark = pytest.mark.runs_much


def assert_same_view(battle, ts, last_actions, message=""):
    np.testing.assert_array_equal(ts.avail, battle.masks(), err_msg=f"masks {message}")
    np.testing.assert_allclose(ts.obs, battle.observations(), atol=1e-5, err_msg=f"observations {message}")
    np.testing.assert_allclose(
        ts.global_state, battle.global_state(last_actions), atol=1e-5, err_msg=f"state {message}"
    )


def compare(episodes, worlds):
    """Every step of these episodes, the reference starting from our situation each time.

    Returns the numbers of steps and of those whose outcome rounding decided: a length differed from what it is
    compared with by less than 1e-5, or a unit was closer than 1e-3 to where it wanted to go.
    """
    env, steps, undecided = episodes.env, 0, 0
    battle = reference.Battle(env.layout, env.battle.rules)
    for w in range(worlds):
        for t in range(episodes.lengths[w]):
            before, after = at(episodes.states.units, t, w), at(episodes.states.units, t + 1, w)
            ts, actions = at(episodes.seen, t + 1, w), episodes.actions[t, w]
            put(battle, before)
            outcome = battle.step(actions, episodes.bits[t, w])
            where = f"at step {t} of world {w}; closest call {battle.closest_call:.1e}"
            # Places are rounded to 2e-6, so that the direction of a short way is not exact, and neighbours are pushed.
            tolerance = 1e-4 + 1e-5 / battle.shortest_way
            try:
                assert_same_situation(after, take(battle), tolerance, where)
                assert float(ts.reward) == pytest.approx(outcome.reward, abs=1e-5), where
                assert bool(ts.metrics["battle_won"]) == outcome.won, where
                assert bool(ts.terminated | ts.truncated) == (outcome.ended or t + 1 == env.layout.limit), where
            except AssertionError:
                if battle.closest_call > 1e-5 and battle.shortest_way > 1e-3:
                    raise
                undecided += 1
            steps += 1
            put(battle, after)
            assert_same_view(battle, ts, actions, where)
            assert list(ts.alive) == [u.alive for u in battle.allies]
            assert ts.metrics["dead_allies"] == sum(not u.alive for u in battle.allies)
            assert ts.metrics["dead_enemies"] == sum(not u.alive for u in battle.enemies)
    return steps, undecided


@pytest.mark.parametrize("rules", RULES)
@per_map()
def test_every_step_is_that_of_the_reference(name, rules):
    for policy, worlds in (("random", 4), ("attack", 2), ("wait", 2)):
        steps, undecided = compare(record(name, rules, policy), worlds)
        print(f"{name} {rules} {policy}: {steps} steps, rounding decided in {undecided}")
        assert steps > 10 * worlds
        assert undecided <= max(1, steps / 200)


@pytest.mark.parametrize("name", ["5v6", "3s5z"])
def test_so_is_every_step_by_the_doubtful_rules(name):
    plain, doubtful = (record(name, policy="attack", settings=s) for s in ((), DOUBTFUL))
    assert not np.array_equal(plain.states.units.x[:20], doubtful.states.units.x[:20])
    for policy, worlds in (("random", 2), ("attack", 3)):
        steps, undecided = compare(record(name, policy=policy, settings=DOUBTFUL), worlds)
        print(f"{name} {policy}: {steps} steps, rounding decided in {undecided}")
        assert steps > 10 * worlds
        assert undecided <= max(1, steps / 50)


@per_map("3m", *NAMES)
def test_the_start_is_that_of_the_reference(name):
    for rules in RULES:
        state, ts = reset(name, rules)
        battle = reference.Battle(MAPS[name], RULES[rules])
        assert_same_situation(state.units, take(battle), 1e-6)
        assert_same_view(battle, ts, [-1] * MAPS[name].allies)


# --- who is first ---


class Scene(NamedTuple):
    """Units in reach of each other, allies first."""

    health: tuple
    shield: tuple
    cooldown: tuple
    delay: tuple
    aims: tuple  # number of a unit on the other side, or NOBODY
    ranks: tuple  # who acts first
    jitter: tuple


@cache
def fighting(name, rules):
    return jax.jit(Battle(MAPS[name], RULES[rules]).fight)


def fight(name, rules, scene):
    """A scene after everybody's turn, as Units: (ours, the reference's)."""
    a, e = MAPS[name].allies, MAPS[name].enemies
    columns = [np.array(column, np.float32) for column in scene[:4]]
    units = Units(np.zeros(a + e), np.zeros(a + e), *columns, np.full(e, NOBODY))
    battle = reference.Battle(MAPS[name], RULES[rules])
    put(battle, units)
    others = [battle.enemies] * a + [battle.allies] * e
    aimed_at = [None if aim == NOBODY else side[aim] for side, aim in zip(others, scene.aims, strict=True)]
    for soldier, foe in zip(battle.everybody, aimed_at, strict=True):
        # Only allies, and only by SMAClite's rules, go on shooting at those who died before this tick.
        at_corpses = soldier in battle.allies and not RULES[rules].spares_corpses
        soldier.shooting = soldier.alive and foe is not None and (foe.alive or at_corpses)
    shooting = np.array([[soldier.shooting] for soldier in battle.everybody])
    aims, alive = np.array(scene.aims), np.array(scene.health) > 0
    able = alive[:a, None] & alive[a:]
    aim, after = able & (aims[:a, None] == np.arange(e)), able & (aims[a:] == np.arange(a)[:, None])

    before = sum(enemy.health + enemy.shield for enemy in battle.enemies)
    battle.take_turns(aimed_at, scene.ranks, scene.jitter)
    recovered = sum(enemy.health + enemy.shield for enemy in battle.enemies) - before + battle.damage

    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], units)
    chance = Chance(jnp.array(scene.ranks)[:, None], jnp.array(scene.jitter, jnp.float32)[:, None])
    ours, our_recovered = fighting(name, rules)(batch, aim[..., None], after[..., None], shooting, chance)
    assert float(our_recovered[0]) == pytest.approx(recovered, abs=1e-5)
    return at(jax.tree.map(np.asarray, ours), ..., 0), take(battle)


@st.composite
def scenes(draw, name, rules):
    """Many about to die, many ready to fire, some acting at the same rank."""
    layout, (low, high) = MAPS[name], RULES[rules].jitter
    ranks = st.integers(0, draw(st.sampled_from([1, 5, 2**16 - 1])))
    rows = []
    a, e = layout.allies, layout.enemies
    for kind, count, foes in [(layout.ally, a, e), (layout.enemy, e, a)]:
        unit = RULES[rules].units[kind]
        for _ in range(count):
            health = draw(st.sampled_from([0, 1, 6, 7, 12, 13, 18, unit.health]))
            shielded = unit.shield and health
            shield = draw(st.sampled_from([0, 0.125, 8, 10, 12.875, 20, unit.shield])) if shielded else 0
            delay = draw(st.sampled_from([0, 1, 2, 160])) if shielded else 0
            cooldown = draw(st.sampled_from([0, 0, 0.5, 1, 1.5, 4]))
            jitter = draw(st.floats(low, high, width=16)) if high > low else 0
            rows.append((health, shield, cooldown, delay, draw(st.integers(NOBODY, foes - 1)), draw(ranks), jitter))
    return Scene(*zip(*rows, strict=True))


@pytest.mark.parametrize("rules", RULES)
@per_map("5v6", "3s5z")
def test_turns_are_taken_in_order(name, rules):
    @settings(max_examples=150, deadline=None)
    @given(scenes(name, rules))
    def check(scene):
        assert_same_situation(*fight(name, rules, scene))

    check()


def standoff(health, aims, ranks):
    """A scene on 5v6 with every weapon ready."""
    none = (0,) * 11
    return Scene(tuple(health), none, none, none, tuple(aims), tuple(ranks), none)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.xdist_group("smac-5v6")
def test_chains_of_kills(rules):
    """Everybody has one hit left. Who acts kills the next in line, who thus can't kill the one after."""
    line = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 10]  # allies and enemies in turns
    ours, theirs = fight("5v6", rules, standoff([6] * 11, [0, 1, 2, 3, 4, 1, 2, 3, 4, NOBODY, NOBODY], line))
    assert ours.health.tolist() == theirs.health.tolist() == [6] * 5 + [0] * 5 + [6]

    line = [1, 3, 5, 7, 9, 0, 2, 4, 6, 8, 10]  # the other way round
    ours, theirs = fight("5v6", rules, standoff([6] * 11, [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, NOBODY], line))
    assert ours.health.tolist() == theirs.health.tolist() == [0] * 5 + [6] * 6


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.xdist_group("smac-5v6")
def test_ties_go_to_allies_and_to_low_numbers(rules):
    duels = [0, 1, 2, 3, 4] * 2 + [NOBODY]
    ours, _ = fight("5v6", rules, standoff([6] * 11, duels, [3] * 11))
    assert ours.health.tolist() == [6] * 5 + [0] * 5 + [6]
    ours, _ = fight("5v6", rules, standoff([6] * 11, duels, [3] * 5 + [2] * 6))
    assert ours.health.tolist() == [0] * 5 + [6] * 6
    # Two hits kill; the third of equal rank comes late.
    ours, _ = fight("5v6", rules, standoff([45] * 5 + [12] * 6, [0] * 3 + [NOBODY] * 8, [3] * 11))
    assert ours.health[5] == 0
    period = RULES[rules].units["marine"].period
    late = 0 if RULES[rules].spares_corpses else period
    np.testing.assert_allclose(ours.cooldown[:3], [period, period, late], rtol=1e-6)


# --- more maps ---


@pytest.mark.xdist_group("smac-duels")
def test_a_map_is_one_entry(monkeypatch):
    """Two marines against a zealot: only one side has shields, and the map is open."""
    monkeypatch.setitem(MAPS, "2m1z", Map("2m_vs_1z", 2, "marine", 1, "zealot", 30, "open"))
    check_environment(Smac("2m1z"), episodes=1, plain=False)
    assert Smac("2m1z").spec.obs_size == 4 + 6 + 5 + 1
    assert Smac("2m1z").spec.state_size == 2 * 4 + 4
    for policy in ("random", "attack"):
        steps, undecided = compare(record("2m1z", policy=policy), 4)
        assert steps > 40
        assert undecided == 0
