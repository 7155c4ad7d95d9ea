"""What the SMAC simulator promises: sizes, constants, situations worked out by hand, and properties of every battle."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naht.envs.smac.rules as constants
from naht.envs.smac.battle import NOBODY, Battle, Chance
from naht.envs.smac.maps import MAPS, Map
from naht.envs.smac.rules import RULES, TICKS_PER_STEP
from naht.envs.smac.task import FIRST_ATTACK, NO_OP, STOP, Smac, SmacState
from naht.errors import NahtError
from smac_playing import (
    MARINE_MAPS,
    NAMES,
    SMACLITES_ENEMIES,
    WORLDS,
    at,
    per_map,
    program,
    record,
    reset,
    viewing,
)

pytestmark = pytest.mark.runs_much


# --- tables ---

TABLE = {
    # name: allies, enemies, limit, actions, observation, state without and with last actions, reward divisor
    "5v6": (5, 6, 70, 12, 55, 38, 98, 26.5),
    "8v9": (8, 9, 120, 15, 85, 59, 179, 34.75),
    "10v11": (10, 11, 150, 17, 105, 73, 243, 40.25),
    "3s5z": (3, 5, 250, 11, 48, 35, 68, 50.0),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", NAMES)
def test_sizes(name, rules):
    allies, enemies, limit, actions, obs, plain, whole, divisor = TABLE[name]
    env = Smac(name, rules)
    assert (env.layout.allies, env.layout.enemies) == (allies, enemies)
    spec = env.spec
    sizes = (spec.num_agents, spec.horizon, spec.num_actions, spec.obs_size, spec.state_size)
    assert sizes == (allies, limit, actions, obs, plain)
    assert Smac(name, rules, state_last_action=True).spec.state_size == whole
    assert env.reward_scale == pytest.approx(divisor)


UNITS = {
    # rules, unit: health, shield, armour, damage, bonus against armoured, hits, armoured, period in s, range, speed
    # per s, radius, radius in crowds, scale of cooldowns in the state in ticks
    ("sc2", "marine"): (45, 0, 0, 6, 0, 1, False, 0.8608, 5, 2.25, 0.375, 0.375, 15),
    ("sc2", "stalker"): (80, 80, 1, 10, 4, 1, True, 1.44, 6, 2.9531, 0.625, 0.625, 35),
    ("sc2", "zealot"): (100, 50, 1, 8, 0, 2, False, 1.2, 0.1, 2.25, 0.5, 0.375, None),
    ("smaclite", "marine"): (45, 0, 0, 6, 0, 1, False, 0.61, 5, 3.15, 0.375, 0.375, 9.76),
    ("smaclite", "stalker"): (80, 80, 1, 13, 5, 1, True, 1.34, 6, 4.13, 0.625, 0.625, 21.44),
    ("smaclite", "zealot"): (100, 50, 1, 8, 0, 2, False, 0.86, 0.1, 3.15, 0.5, 0.5, None),
}


def test_constants():
    """The reference reads the simulator's, so that they are checked here."""
    for (rules, kind), numbers in UNITS.items():
        *expected, scale = numbers
        unit = RULES[rules].units[kind]
        names = (
            "health",
            "shield",
            "armour",
            "damage",
            "armoured_bonus",
            "hits",
            "armoured",
            "period",
            "range",
            "speed",
        )
        found = [getattr(unit, name) for name in (*names, "radius", "separation")]
        found[7], found[9] = found[7] / 16, found[9] * 16
        assert found == pytest.approx(expected)
        assert scale is None or unit.cooldown_scale == pytest.approx(scale)  # enemies' cooldowns are not shown
    assert RULES["sc2"].jitter == (-1, 2)
    assert RULES["smaclite"].jitter == (0, 0)
    assert (RULES["sc2"].reward, RULES["sc2"].spares_corpses) == ("net", True)
    assert (RULES["smaclite"].reward, RULES["smaclite"].spares_corpses) == ("damage", False)
    assert (constants.SIGHT, constants.ATTACK_RANGE, constants.SCAN_RANGE, constants.MOVE_AMOUNT) == (9, 6, 5, 2)
    assert (constants.SHIELD_DELAY, constants.SHIELD_RECOVERY) == (160, 0.125)
    assert (constants.KILL_VALUE, constants.WIN_VALUE, constants.LARGEST_RETURN) == (10, 200, 20)
    assert (constants.TICKS_PER_STEP, constants.TICKS_PER_SECOND) == (8, 16)


BLOCKS = {
    # name: slices of an observation (enemies, allies, own) and of the state (allies, enemies, last actions)
    "5v6": ((4, 34), (34, 54), (54, 55), (0, 20), (20, 38), (38, 98)),
    "8v9": ((4, 49), (49, 84), (84, 85), (0, 32), (32, 59), (59, 179)),
    "10v11": ((4, 59), (59, 104), (104, 105), (0, 40), (40, 73), (73, 243)),
    "3s5z": ((4, 34), (34, 46), (46, 48), (0, 15), (15, 35), (35, 68)),
}


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_observations_and_state(name):
    """Everybody within sight, each unit with a health, shield and cooldown of its own."""
    env = Smac(name, state_last_action=True)
    a, e, shields = env.layout.allies, env.layout.enemies, name == "3s5z"
    n = a + e
    state, _ = reset(name)
    share = np.linspace(0.1, 0.9, n, dtype=np.float32)
    units = state.units._replace(
        x=np.linspace(14, 18, n, dtype=np.float32),
        y=np.linspace(17, 15, n, dtype=np.float32),
        health=share * env.battle.each("health")[:, 0],
        shield=(1 - share) * env.battle.each("shield")[:, 0],
        cooldown=np.arange(n, dtype=np.float32),
    )
    state = state._replace(units=units, last_action=np.arange(a, dtype=np.int32))
    ts = viewing(name)(state)
    enemies, allies, own, state_allies, state_enemies, last = (slice(*ends) for ends in BLOCKS[name])
    seen = np.array(ts.obs)
    me = 1
    np.testing.assert_array_equal(seen[:, :4], 1)
    dx, dy = (units.x - units.x[me]) / 9, (units.y - units.y[me]) / 9
    table = np.stack([np.ones(n), np.hypot(dx, dy), dx, dy, share, 1 - share][: 6 if shields else 5], axis=1)
    np.testing.assert_allclose(seen[me, enemies], table[a:].ravel(), atol=1e-6)
    np.testing.assert_allclose(seen[me, allies], np.delete(table[:a], me, axis=0).ravel(), atol=1e-6)
    np.testing.assert_allclose(seen[me, own], table[me, 4:], atol=1e-6)

    x, y = (units.x - 16) / 32, (units.y - 16) / 32
    cooldown = units.cooldown / (35 if shields else 15)
    table = np.stack([share, cooldown, x, y, 1 - share][: 5 if shields else 4], axis=1)
    np.testing.assert_allclose(ts.global_state[state_allies], table[:a].ravel(), atol=1e-6)
    np.testing.assert_allclose(ts.global_state[state_enemies], np.delete(table[a:], 1, axis=1).ravel(), atol=1e-6)
    np.testing.assert_array_equal(ts.global_state[last], np.eye(a, env.spec.num_actions).ravel())
    assert (own.stop, last.stop) == (env.spec.obs_size, env.spec.state_size)


REWARDS = {
    # (damage to one enemy, its reward); the reward of a kill; of the win
    ("5v6", "sc2"): ([(6, 0.226415)], 0.377358, 7.547170),
    ("8v9", "sc2"): ([(6, 0.172662)], 0.287770, 5.755396),
    ("10v11", "sc2"): ([(6, 0.149068)], 0.248447, 4.968944),
    ("3s5z", "sc2"): ([(10, 0.2), (9, 0.18)], 0.2, 4.0),  # on the shield, on the hull
    ("3s5z", "smaclite"): ([(13, 0.26), (12, 0.24)], 0.2, 4.0),
}


@pytest.mark.parametrize(("name", "rules"), REWARDS)
def test_known_rewards(name, rules):
    env = Smac(name, rules)
    first = env.layout.allies
    hits, kill, win = REWARDS[name, rules]

    def reward(damage, left, won=False):
        """Of damage to the first enemy, which leaves it with some health."""
        before, after = env.battle.start(), env.battle.start()
        before = before._replace(health=before.health.at[first].set(damage + left))
        after = after._replace(health=after.health.at[first].set(left))
        return float(env.reward(before, after, jnp.zeros(1), jnp.array([won]))[0])

    for damage, expected in hits:
        assert reward(damage, left=20) == pytest.approx(expected, abs=1e-6)
        assert reward(damage, left=0) == pytest.approx(expected + kill, abs=1e-6)
        assert reward(damage, left=0, won=True) == pytest.approx(expected + kill + win, abs=1e-5)


SPAWN = {
    # allies and enemies in SMAClite's order
    "5v6": (
        [(8.25, 15.575), (9.05, 15.575), (9.85, 15.575), (8.25, 16.375), (9.05, 16.375)],
        [(23.75, 16.425), (22.95, 16.425), (22.15, 16.425), (23.75, 15.625), (22.95, 15.625), (22.15, 15.625)],
    ),
    "8v9": (
        [(x, y) for y in (15.2, 16, 16.8) for x in (8.25, 9.05, 9.85)][:8],
        [(x, y) for y in (16.8, 16, 15.2) for x in (23.75, 22.95, 22.15)],
    ),
    "10v11": (
        [(x, y) for y in (15.175, 15.975, 16.775) for x in (7.875, 8.675, 9.475, 10.275)][:10],
        [(x, y) for y in (16.825, 16.025, 15.225) for x in (24.125, 23.325, 22.525, 21.725)][:11],
    ),
    "3s5z": (
        [(8.375, 15.35), (9.675, 15.35), (8.375, 16.65)],
        [(24, 16.55), (22.95, 16.55), (21.9, 16.55), (24, 15.5), (22.95, 15.5)],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_where_units_start(name):
    allies, enemies = SPAWN[name]
    for rules, order in (("smaclite", allies), ("sc2", sorted(allies))):
        units = reset(name, rules)[0].units
        np.testing.assert_allclose(np.stack([units.x, units.y], axis=1), order + enemies, atol=1e-5)
        np.testing.assert_array_equal(units.target, NOBODY)


# --- by hand ---


@cache
def ticking(name):
    return jax.jit(Smac(name).battle.tick)


def one_tick(name, allies, enemies, aims=(), target=NOBODY):
    """A tick of a battle of a few without shields, all others dead: units before and after.

    Places by side [(x, y)]; ally i aims at enemy aims[i]; target: whom the first enemy is after already.
    """
    env = Smac(name)
    a, e = env.layout.allies, env.layout.enemies
    units = jax.tree.map(np.array, env.battle.start())
    units.health[:], units.shield[:], units.delay[:] = 0, 0, 100
    for first, places in ((0, allies), (a, enemies)):
        here = slice(first, first + len(places))
        units.x[here, 0], units.y[here, 0] = zip(*places, strict=True)
        units.health[here] = env.battle.each("health")[here]
    units.target[0] = target
    actions = np.full((a, 1), STOP, np.int32)
    for i, aim in enumerate(aims):
        actions[i] = FIRST_ATTACK + aim
    nothing = jnp.zeros((a + e, 1))
    after, _ = ticking(name)(units, env.orders(units, actions), Chance(nothing.astype(jnp.int32), nothing))
    return units, jax.tree.map(np.asarray, after)


@pytest.mark.xdist_group("smac-5v6")
def test_whom_enemies_are_after():
    def after(*allies, aims=(), target=NOBODY):
        """Of an enemy at x = 16 with allies along that line."""
        _, units = one_tick("5v6", [(x, 16) for x in allies], [(16, 16)], aims, target)
        return int(units.target[0, 0])

    assert after(16 - 5.75) == NOBODY  # noticed at less than 5 and both radii
    assert after(16 - 5.74) == 0
    assert after(16 - 5.25, 16 + 5.125) == 1  # the nearest
    assert after(16 - 5.25, 16 + 5.25) == 0  # the first of equals
    assert after(16 - 5.875, aims=[0]) == 0  # whoever aims at it
    assert after(16 - 5.875, 16 + 5.25, aims=[0]) == 1  # but those far away come last
    assert after(16 - 5.75, target=0) == 0  # kept while in reach, though not noticed
    assert after(16 - 5.875, target=0) == NOBODY
    assert after(16 - 5.75, 16 + 1, target=0) == 0  # and though somebody else is nearer
    assert after(16 - 5.875, 16 + 1, target=0) == 1
    assert after(16 - 8, 16 + 1, aims=[0], target=0) == 0  # kept anywhere while it aims back
    assert after(16 - 8, 16 + 1, target=0) == 1
    assert after(16 - 1, target=3) == 0  # the third is dead


@pytest.mark.xdist_group("smac-5v6")
def test_enemies_help_one_another():
    """The first ally shoots at the enemy at x = 16; others stand behind it, out of the shooter's sight."""

    def after(*others, shooter=16 - 5.5):
        _, units = one_tick("5v6", [(shooter, 16)], [(16, 16), *[(x, 16) for x in others]], aims=[0])
        return units.target[: 1 + len(others), 0].tolist()

    assert after(18, 20.25) == [0, 0, 0]
    assert after(18, 20.5) == [0, 0, NOBODY]  # more than 4 and a radius away
    assert after(18, shooter=16 - 5.875) == [0, NOBODY]  # nobody has been shot at yet


def test_how_enemies_notice_is_a_setting():
    assert Smac("5v6").battle.scan == Smac("5v6", scan_from="edge").battle.scan == 5.75
    assert Smac("5v6", scan_from="centre").battle.scan == Smac("5v6", "smaclite").battle.scan == 5.375
    assert Smac("3s5z").battle.scan == 6.125
    assert Smac("5v6", help_radius=2.5).battle.rules.help_radius == 2.5
    assert Smac("5v6", "smaclite").battle.rules.help_radius == 0
    with pytest.raises(NahtError, match="help_radius"):
        Smac("5v6", help_radius=-1.0)


@pytest.mark.xdist_group("smac-5v6")
def test_reach_of_weapons():
    before, units = one_tick("5v6", [(10, 16)], [(15.75, 16)], aims=[0])
    assert units.health[[0, 5], 0].tolist() == [39, 39]  # both fire at once, and nobody walks
    np.testing.assert_array_equal(units.x, before.x)
    before, units = one_tick("5v6", [(10, 16)], [(15.875, 16)], aims=[0])
    assert units.health[[0, 5], 0].tolist() == [45, 45]
    speed = 2.25 / 16
    np.testing.assert_allclose(units.x[[0, 5], 0], [10 + speed, 15.875 - speed], atol=1e-5)
    # Zealots hit twice, each time with 8 less 1 for armour; a stalker reaches at once whom it may name.
    _, units = one_tick("3s5z", [(10, 16)], [(11.2, 16)], target=0)
    assert units.health[0, 0] == 80 - 14
    _, units = one_tick("3s5z", [(10, 16)], [(11.25, 16)], target=0)
    assert units.health[0, 0] == 80
    _, units = one_tick("3s5z", [(10, 16)], [(16, 16)], aims=[0])
    assert (units.health[3, 0], units.x[0, 0]) == (100 - 9, 10)


@pytest.mark.parametrize(("rules", "later"), [("sc2", [5.7728, 0]), ("smaclite", [2.76, 4.76])])
@pytest.mark.xdist_group("smac-5v6")
def test_shots_at_corpses(rules, later):
    """The first ally kills in the first tick. The second, ready in the third, has no target, or loses its shot."""
    _, play = program("5v6", rules)
    state, _ = jax.tree.map(np.array, reset("5v6", rules))
    units = state.units
    units.health[:] = [45, 45, 0, 0, 0, 6, 0, 0, 0, 0, 45]
    units.x[[0, 1, 5]], units.y[[0, 1, 5]] = [10, 10, 14], [16, 17, 16]
    units.cooldown[[1, 5]] = 3, 100
    worlds = jax.tree.map(lambda leaf: np.repeat(leaf[None], WORLDS, axis=0), state)
    actions = np.full((WORLDS, 5), FIRST_ATTACK, np.int32)
    after, ts = play(np.zeros((WORLDS, TICKS_PER_STEP, 11), np.uint32), worlds, actions)
    assert ts.metrics["dead_enemies"][0] == 5
    np.testing.assert_allclose(after.units.cooldown[0, :2], later, atol=1e-5)


@pytest.mark.xdist_group("smac-5v6")
def test_what_can_be_seen_and_named():
    state, _ = reset("5v6")
    places = np.array([10, 18.875, 1, 19, 10, 16, 16.125, 18.875, 19, 30, 10], np.float32)  # five allies, six enemies
    units = state.units._replace(x=places, y=np.full(11, 16, np.float32))
    ts = viewing("5v6")(state._replace(units=units))
    assert ts.avail[0, FIRST_ATTACK:].tolist() == [True, False, False, False, False, True]  # at 6, not at 6.125
    enemies, allies = np.array(ts.obs[0, 4:34]).reshape(6, 5), np.array(ts.obs[0, 34:54]).reshape(4, 5)
    assert enemies[:, 4].tolist() == [1, 1, 1, 0, 0, 1]  # at less than 9
    assert allies[:, 0].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("name", "rules", "place", "open_ways"),
    [
        ("5v6", "sc2", (16, 16), "nsew"),
        ("5v6", "sc2", (16, 22.99), "nsew"),
        ("5v6", "sc2", (16, 23), "sew"),
        ("5v6", "sc2", (16, 9), "nsew"),
        ("5v6", "sc2", (16, 8.99), "new"),
        ("5v6", "sc2", (30.99, 16), "nsew"),
        ("5v6", "sc2", (31, 16), "nsw"),
        ("5v6", "sc2", (0.5, 16), "nsew"),  # int() of -0.5 is 0
        ("5v6", "smaclite", (0.5, 16), "nse"),
        ("5v6", "smaclite", (1, 16), "nsew"),
        ("3s5z", "sc2", (0.5, 31.2), "sew"),
        ("3s5z", "smaclite", (16, 27.99), "nsew"),
        ("3s5z", "smaclite", (16, 28), "sew"),
        ("3s5z", "smaclite", (3.99, 4), "nse"),
    ],
)
def test_ways_that_are_open(name, rules, place, open_ways):
    env = Smac(name, rules)
    units = env.battle.start()
    x, y = place
    masks = env.masks(units._replace(x=units.x.at[0].set(x), y=units.y.at[0].set(y)))
    assert "".join(way for way, free in zip("nsew", masks[0, 2:6, 0], strict=True) if free) == open_ways


@pytest.mark.xdist_group("smac-3m")
def test_winning_takes_a_survivor():
    """Nobody can win and be dead, except in SMAClite."""

    def won(rules, health):
        state, _ = reset("3m", rules)
        units = state.units._replace(health=np.array(health, np.float32))
        return float(viewing("3m", rules)(state._replace(units=units)).metrics["battle_won"])

    for rules, both_dead in (("sc2", 0), ("smaclite", 1)):
        for health in ([45] * 6, [45] * 3 + [0, 0, 6], [0] * 3 + [45] * 3):
            assert won(rules, health) == 0
        assert won(rules, [0, 0, 6] + [0] * 3) == 1
        assert won(rules, [0] * 6) == both_dead


# --- promises ---


def check_promises(episodes):
    """What holds in any episode, whatever the agents do, and also after its end."""
    env, units, seen = episodes.env, episodes.states.units, episodes.seen
    a, rules = env.layout.allies, RULES[env.rules]
    alive = units.health > 0
    for leaf in jax.tree.leaves((units, seen)):
        assert np.isfinite(leaf).all()

    assert (seen.reward >= 0).all()
    assert (np.abs(seen.obs) <= 1).all()
    assert (episodes.lengths <= env.layout.limit).all()
    assert not (alive[1:] & ~alive[:-1]).any()  # dead stays dead
    np.testing.assert_array_equal(seen.alive, alive[..., :a])

    # Masks leave everybody something to do, and the dead only that.
    dead = ~alive[..., :a]
    np.testing.assert_array_equal(seen.avail[..., NO_OP], dead)
    np.testing.assert_array_equal(seen.avail[..., STOP], ~dead)
    assert not seen.avail[dead][:, 1:].any()
    assert not seen.obs[dead].any()
    assert not (seen.avail[..., FIRST_ATTACK:] & ~alive[..., None, a:]).any()

    for number in ("health", "shield"):
        value = getattr(units, number)
        assert (value >= 0).all()
        assert (value <= env.battle.each(number)[:, 0]).all()
    assert not units.shield[~alive].any()
    assert (np.diff(units.health, axis=0) <= 0).all()
    living = alive[1:]
    assert (units.cooldown >= 0).all()
    cooldown = units.cooldown[..., :a]
    assert (cooldown <= env.battle.each("period")[:a, 0] + rules.jitter[1]).all()

    # Nobody is quicker than it can be, or where nobody can be.
    way = np.hypot(np.diff(units.x, axis=0), np.diff(units.y, axis=0))
    assert (way <= TICKS_PER_STEP * env.battle.each("speed")[:, 0] + 1e-4)[living].all()
    if rules.closed_map:
        left, bottom, right, top = env.layout.walkable(rules)
        gap = env.battle.each("separation")[:, 0] - 1e-4
        assert ((units.x >= left + gap) & (units.x <= right - gap)).all()
        assert ((units.y >= bottom + gap) & (units.y <= top - gap)).all()


@pytest.mark.parametrize("rules", RULES)
@per_map()
def test_promises(name, rules):
    check_promises(record(name, rules))
    check_promises(record(name, rules, "anything"))


@pytest.mark.parametrize("rules", RULES)
@per_map("5v6", "3s5z")
def test_promises_for_other_seeds(name, rules):
    @settings(max_examples=6, deadline=None)
    @given(
        seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(["random", "anything", "attack"]), harmless=st.booleans()
    )
    def check(seed, policy, harmless):
        episodes = record.__wrapped__(name, rules, policy, seed, harmless)
        units = episodes.states.units
        if harmless:  # so that allies live on
            assert (units.health[..., : episodes.env.layout.allies] > 0).all()
            units.cooldown[..., episodes.env.layout.allies :] = 0
        check_promises(episodes)

    check()


@per_map()
def test_actions_that_are_not_available_are_stop(name):
    episodes = record(name, policy="anything")
    _, play = program(name)
    chosen = np.take_along_axis(episodes.seen.avail[:-1], episodes.actions[..., None], axis=-1)[..., 0]
    instead = np.where(episodes.seen.avail[:-1, ..., NO_OP], NO_OP, STOP)
    actions = np.where(chosen, episodes.actions, instead)
    assert 0.1 < chosen.mean() < 0.9
    np.testing.assert_array_equal(episodes.states.last_action[1:], actions)
    for t in range(0, len(actions), 3):
        again = play(episodes.bits[t], at(episodes.states, t), actions[t])
        there = at((episodes.states, episodes.seen), t + 1)
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, again), there)


@pytest.mark.parametrize("rules", RULES)
@per_map()
def test_winning_is_worth_20(name, rules):
    """Enemies that never shoot lose every battle. Shields that recover are worth something, too."""
    episodes = record(name, rules, "attack", harmless=True)
    assert episodes.won.all()
    assert (episodes.lengths < episodes.env.layout.limit).all()
    if name in MARINE_MAPS:
        np.testing.assert_allclose(episodes.returns, 20, atol=1e-4)
    else:
        assert (episodes.returns >= 20 - 1e-4).all()


@pytest.mark.parametrize(("pursuit", "far", "near", "after"), [(0, 8, 8, NOBODY), (9, 12, 8, 1), (9, 12, 9, NOBODY)])
def test_enemies_pursue_whom_one_of_them_is_near(pursuit, far, near, after):
    """The second of three allies, whom all enemies were after, does nothing; then it is dead, then the near enemy."""
    battle = Smac("3m", pursuit=pursuit).battle
    target, no = jnp.full((3, 1), 1), jnp.zeros((3, 3, 1), bool)
    distance = jnp.full((3, 3, 1), float(far)).at[:, 2].set(near)
    for able, found in ((~no, after), (~no.at[1].set(True), NOBODY), (~no.at[:, 2].set(True), NOBODY)):
        chosen = battle.choose(target, no, able, no, distance, no)
        living = able.any(0)[:, 0]
        assert chosen[living, 0].tolist() == [found] * int(living.sum())


def test_who_pursues_by_default():
    assert [Smac(name).battle.enemy.pursuit for name in ("5v6", "3s5z")] == [0, 21]
    assert Smac("3s5z", rules="smaclite").battle.enemy.pursuit == 0
    assert Smac("5v6", pursuit=7).battle.enemy.pursuit == 7


@pytest.mark.parametrize(("pays", "worth"), [(True, 5.0), (False, 0.0)])
def test_what_shields_that_recover_are_worth(pays, worth):
    env = Smac("3s5z", recovery_pays=pays)
    allies, start = env.layout.allies, env.battle.start()
    wounded = start._replace(shield=start.shield.at[allies:].set(40.0))
    recovered = wounded._replace(shield=wounded.shield.at[allies:].add(1.0))
    hit = recovered._replace(shield=recovered.shield.at[allies].add(-10.0))
    nothing, lost = jnp.zeros(1), jnp.zeros(1, bool)
    paid = [float(env.reward(wounded, after, nothing, lost)[0]) * env.reward_scale for after in (recovered, hit)]
    assert paid == pytest.approx([worth, 10.0 - 5.0])


@pytest.mark.xdist_group("smac-3m")
def test_winning_a_real_battle_is_worth_20():
    episodes = record("3m", policy="attack", settings=SMACLITES_ENEMIES)
    assert 0.2 < episodes.won.mean() < 0.8
    np.testing.assert_allclose(episodes.returns[episodes.won], 20, atol=1e-4)
    assert (episodes.returns[~episodes.won] < 20 - 200 / Smac("3m").reward_scale).all()
    check_promises(episodes)


@per_map()
def test_the_limit_ends_an_episode(name):
    """Against enemies that never shoot, allies that stand about live on."""
    episodes = record(name, policy="stop", harmless=True)
    assert (episodes.lengths == TABLE[name][2]).all()
    assert not episodes.won.any()
    assert not episodes.returns.any()
    assert episodes.seen.truncated[-1].all()
    assert not episodes.seen.terminated.any()


@pytest.mark.xdist_group("smac-duels")
def test_what_the_limit_means(monkeypatch):
    """The clock truncates; whether learners bootstrap there is their own setting."""
    monkeypatch.setitem(MAPS, "duel", Map("1v1", 1, "marine", 1, "marine", 4, "band"))
    env = Smac("duel")
    step = jax.jit(env.step)
    fresh, _ = jax.jit(env.reset)(jax.random.key(0))
    state = fresh
    ends = []
    for _ in range(4):
        state, ts = step(jax.random.key(0), state, jnp.array([STOP]))
        ends.append((bool(ts.terminated), bool(ts.truncated)))
    assert ends == [(False, False)] * 3 + [(False, True)]

    # Who wins with the last step has won.
    units = fresh.units._replace(x=jnp.array([10.0, 14.0]), health=jnp.array([45.0, 6.0]))
    _, ts = step(
        jax.random.key(0), SmacState(units, fresh.last_action, jnp.array(3, jnp.int32)), jnp.array([FIRST_ATTACK])
    )
    assert (bool(ts.terminated), bool(ts.truncated)) == (True, False)
    assert float(ts.reward) == pytest.approx((6 + 10 + 200) / env.reward_scale)
    assert ts.metrics["battle_won"] == 1


@pytest.mark.xdist_group("smac-3m")
def test_a_key_decides_all_chance():
    env = Smac("3m", state_last_action=True)
    step = jax.jit(env.step)
    episodes = record("3m")
    differing = 0
    for t in range(10, 20):
        state, actions, key = at(episodes.states, t, 0), episodes.actions[t, 0], jax.random.key(t)
        mine = step(key, state, actions)
        jax.tree.map(np.testing.assert_array_equal, mine, step(key, state, actions))
        other = step(jax.random.key(t + 100), state, actions)
        differing += any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (mine, other)), strict=True))
        # The key is used for these words and nothing else; side by side with other worlds or alone is the same.
        bits = np.array(episodes.bits[t])
        bits[0] = jax.random.bits(key, bits.shape[1:])
        together = at(program("3m")[1](bits, at(episodes.states, t), episodes.actions[t]), 0)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), mine, together)
    assert differing >= 1


# --- crowds ---


def closeness(episodes):
    """Distances of living pairs at the ends of steps, as parts of the sum of their radii, or nan: [T, W, pairs]."""
    units, radius = episodes.states.units, episodes.env.battle.each("separation")[:, 0]
    i, j = np.triu_indices(len(radius), 1)
    distance = np.hypot(units.x[..., i] - units.x[..., j], units.y[..., i] - units.y[..., j]) / (radius[i] + radius[j])
    alive = (units.health[..., i] > 0) & (units.health[..., j] > 0)
    return np.where(alive[1:] & episodes.playing[..., None], distance[1:], np.nan)


@pytest.mark.parametrize("policy", ["random", "attack", "wait", "anything"])
@per_map()
def test_units_keep_their_distance(name, policy):
    """Who would come closer than 0.9 of the sum of the radii stays where it is, so nobody ever does."""
    apart = closeness(record(name, policy=policy))
    assert (apart < 1.2).sum() > 1000, "no crowd to speak of"
    assert np.nanmin(apart) > 0.9 - 1e-4
    assert np.nanmin(apart) < 1.0, "nobody touches anybody: is the rule ever needed?"


@pytest.mark.xdist_group("smac-10v11")
def test_who_would_come_too_close_stays():
    """One walks into another that stands, the next into the first; the last has room. All at a walking pace."""
    battle = Battle(MAPS["10v11"], replace(RULES["sc2"], crowding=replace(RULES["sc2"].crowding, sweeps=0)))
    units = battle.start()
    reach, speed = 0.9 * 0.75, 2.25 / 16  # how close two may come, how far one gets in a tick
    # In a row: standing, close behind it one, behind that another, and one with room to walk.
    x = (
        jnp.full_like(units.x, 30)
        .at[:4, 0]
        .set(jnp.array([10, 10 + reach, 10 + 2 * reach, 10 + 3 * reach + speed + 0.01]))
    )
    y = units.y.at[:, 0].set(jnp.linspace(9, 23, 21)).at[:4].set(16)
    units = units._replace(x=x, y=y)
    walking = jnp.zeros_like(x).at[1:4].set(-speed)
    moving, alive = walking != 0, jnp.ones_like(x, bool)
    to_x, to_y = battle.move(units, walking, jnp.zeros_like(x), moving, alive)
    np.testing.assert_array_equal(to_x[:3], x[:3])
    np.testing.assert_allclose(to_x[3], x[3] - speed, atol=1e-6)
    np.testing.assert_array_equal(to_y, y)
    # The dead are in nobody's way.
    to_x, _ = battle.move(units, walking, jnp.zeros_like(x), moving, alive.at[0].set(False))
    np.testing.assert_allclose(to_x[1:4], x[1:4] - speed, atol=1e-6)
