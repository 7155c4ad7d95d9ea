"""Battles for tests: programs compiled once per map, policies, recorded episodes, and situations compared."""

from functools import cache, lru_cache
from typing import NamedTuple

import jax
import numpy as np
import pytest

from naht.envs.base import TimeStep
from naht.envs.smac.battle import NOBODY, Units
from naht.envs.smac.rules import TICKS_PER_STEP
from naht.envs.smac.task import FIRST_ATTACK, NO_OP, STOP, Smac, SmacState, worlds_last

EAST = 4
WORLDS = 64
MARINE_MAPS = ["5v6", "8v9", "10v11"]
NAMES = [*MARINE_MAPS, "3s5z"]


def per_map(*names):
    """Parametrises by map. All tests of a map run in one process, so that its program is compiled once."""
    params = [pytest.param(name, marks=pytest.mark.xdist_group(f"smac-{name}")) for name in names or NAMES]
    return pytest.mark.parametrize("name", params)


DOUBTFUL = (("pursuit", 12.0), ("walk_round", True), ("range_slop", 1.0), ("aim_ticks", 4.0))
"""Settings of what StarCraft II may do and we do not by default."""
SMACLITES_ENEMIES = (("scan_from", "centre"), ("help_radius", 0.0))


@cache
def program(name, rules="sc2", settings=()):
    """The environment, and its `play` of WORLDS worlds, compiled: (bits, state, actions) -> (state, time step)."""
    env = Smac(name, rules, state_last_action=True, **dict(settings))
    return env, jax.jit(jax.vmap(worlds_last(env.play)))


@cache
def reset(name, rules="sc2"):
    """The state and what is seen at the start, one world. Units have fixed places, so that the key does not matter."""
    env = Smac(name, rules, state_last_action=True)
    return jax.tree.map(np.asarray, jax.jit(env.reset)(jax.random.key(0)))


@cache
def viewing(name, rules="sc2"):
    """What is seen in one world, compiled: state -> time step."""
    return jax.jit(worlds_last(Smac(name, rules, state_last_action=True).view))


class Record(NamedTuple):
    """Episodes side by side. T steps, W worlds."""

    env: Smac
    states: SmacState  # [T + 1, W, ...]
    seen: TimeStep  # [T + 1, W, ...]
    actions: np.ndarray  # [T, W, A]
    bits: np.ndarray  # [T, W, ticks, N]
    playing: np.ndarray  # [T, W] bool, the episode was not over before that step

    @property
    def returns(self):
        return (self.seen.reward[1:] * self.playing).sum(0)

    @property
    def lengths(self):
        return self.playing.sum(0)

    @property
    def won(self):
        return ((self.seen.metrics["battle_won"][1:] > 0) & self.playing).any(0)


def random(rng, avail):
    """Uniform over what is available: avail [..., actions] bool -> [...]."""
    return np.where(avail, rng.random(avail.shape), -1).argmax(-1)


def first_of(*actions):
    """The policy of the first action in a list that is available."""

    def policy(rng, avail):
        order = np.array([*range(FIRST_ATTACK, avail.shape[-1]), *actions])
        return order[avail[..., order].argmax(-1)]

    return policy


def anything(rng, avail):
    """Half of the time whatever there is, available or not."""
    wild = rng.integers(0, avail.shape[-1], avail.shape[:-1])
    return np.where(rng.random(avail.shape[:-1]) < 0.5, wild, random(rng, avail))


def stop(rng, avail):
    return np.where(avail[..., NO_OP], NO_OP, STOP)


POLICIES = {
    "random": random,
    "attack": first_of(EAST, STOP, NO_OP),
    "wait": first_of(STOP, NO_OP),
    "stop": stop,
    "anything": anything,
}


@lru_cache(maxsize=4)
def record(name, rules="sc2", policy="random", seed=0, harmless=False, settings=()):
    """Play until every episode is over. `harmless`: enemies whose weapons never get ready."""
    env, play = program(name, rules, settings)
    rng = np.random.default_rng(seed)
    state, ts = jax.tree.map(lambda leaf: np.repeat(leaf[None], WORLDS, axis=0), reset(name, rules))
    if harmless:
        state.units.cooldown[:, env.layout.allies :] = 1e6
    states, seen, actions, bits, playing = [state], [ts], [], [], [np.ones(WORLDS, bool)]
    while playing[-1].any():
        shape = (WORLDS, TICKS_PER_STEP, env.layout.allies + env.layout.enemies)
        bits.append(rng.integers(0, 2**32, shape, dtype=np.uint32))
        actions.append(POLICIES[policy](rng, seen[-1].avail).astype(np.int32))
        state, ts = jax.tree.map(np.asarray, play(bits[-1], states[-1], actions[-1]))
        states.append(state)
        seen.append(ts)
        playing.append(playing[-1] & ~(ts.terminated | ts.truncated))
    states, seen = (jax.tree.map(lambda *leaves: np.stack(leaves), *steps) for steps in (states, seen))
    return Record(env, states, seen, np.stack(actions), np.stack(bits), np.stack(playing[:-1]))


def at(tree, *index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def put(battle, units):
    """Set the reference to a situation of ours, one world."""
    for i, soldier in enumerate(battle.everybody):
        for name in ("x", "y", "cooldown"):
            setattr(soldier, name, np.float32(getattr(units, name)[i]))
        for name in ("health", "shield", "delay"):
            setattr(soldier, name, float(getattr(units, name)[i]))
    for enemy, target in zip(battle.enemies, units.target, strict=True):
        enemy.target = None if target == NOBODY else battle.allies[target]


def take(battle) -> Units:
    """The reference's situation as ours."""
    numbers = ("x", "y", "health", "shield", "cooldown", "delay")
    columns = {name: np.array([float(getattr(s, name)) for s in battle.everybody]) for name in numbers}
    targets = [NOBODY if e.target is None else battle.allies.index(e.target) for e in battle.enemies]
    return Units(**columns, target=np.array(targets))


def assert_same_situation(ours, theirs, tolerance=1e-4, message=""):
    """Of the dead, only that they are."""
    np.testing.assert_allclose(ours.health, theirs.health, atol=1e-5, err_msg=f"health {message}")
    alive = theirs.health > 0
    for name in ("x", "y", "shield", "cooldown", "delay"):
        a, b = getattr(ours, name)[alive], getattr(theirs, name)[alive]
        np.testing.assert_allclose(a, b, atol=tolerance if name in "xy" else 1e-5, err_msg=f"{name} {message}")
    enemies = alive[-len(theirs.target) :]
    np.testing.assert_array_equal(ours.target[enemies], theirs.target[enemies], err_msg=f"target {message}")
