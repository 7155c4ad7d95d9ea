"""How worlds are shown on a page, and where a belief about a teammate's observation puts that teammate.

A new task is an entry in `WORLDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from naht.envs.lbf import Lbf
from naht.envs.predator_prey import OBSTACLE_RADIUS, PREDATOR_RADIUS, PREY_RADIUS, PredatorPrey
from naht.envs.smac.battle import NOBODY
from naht.envs.smac.rules import SIGHT
from naht.envs.smac.task import Smac
from naht.report.drawings import attacks, battle_facts, loads, reached, touching
from naht.report.recording import Replay


class World(NamedTuple):
    """What a page knows about a kind of environment."""

    show: Callable[[Replay], dict[str, Any]]
    """Fields of an `Episode`: what there is, where, and what happened."""
    believed: Callable[[Replay, int, np.ndarray], np.ndarray] | None
    """(replay, seat, observations [T, K, O] that its agent thinks its teammates have) -> where it thinks they are,
    [T, K, 2], in the world's coordinates; NaN where that can't be told. None: observations do not say."""


def show_hunt(replay: Replay) -> dict[str, Any]:
    """The world of predator-prey: predators, prey, obstacles."""
    position, m = replay.states.position, replay.env.spec.num_agents  # [T + 1, 2, E]
    things = position.shape[2]
    moving = position[:, :, : m + 1]
    low, high = np.minimum(moving.min((0, 2)) - 0.1, -1.05), np.maximum(moving.max((0, 2)) + 0.1, 1.05)
    caught = touching(position, m).sum(1) >= 2
    caught[0] = False
    begins = np.flatnonzero(caught & ~np.concatenate([[False], caught[:-1]]))
    return {
        "kinds": ("predator",) * m + ("prey",) + ("obstacle",) * (things - m - 1),
        "radii": (PREDATOR_RADIUS,) * m + (PREY_RADIUS,) + (OBSTACLE_RADIUS,) * (things - m - 1),
        "bounds": (float(low[0]), float(low[1]), float(high[0]), float(high[1])),
        "places": position.swapaxes(1, 2),
        "action_names": ("stay", "right", "left", "up", "down"),
        "events": tuple((int(t), "catch") for t in begins),
    }


def believed_in_hunt(replay: Replay, seat: int, seen: np.ndarray) -> np.ndarray:
    """A predator's observation holds its own place."""
    del replay, seat
    return seen[..., 2:4]


def show_battle(replay: Replay) -> dict[str, Any]:
    """The world of a SMAC map: allies and enemies, what is left of them, and who shoots at whom."""
    battle, units = cast(Smac, replay.env).battle, replay.states.units  # [T + 1, N]
    layout = battle.map
    sides = {"ally": (layout.allies, layout.ally), "enemy": (layout.enemies, layout.enemy)}
    low, high = reached(replay)
    health, shield = (battle.each(name)[:, 0] for name in ("health", "shield"))
    aims = np.full((replay.length, len(health)), NOBODY)
    fired = np.zeros(aims.shape, bool)
    for t in range(replay.length):
        for attack in attacks(replay, t + 1):
            aims[t, attack.shooter], fired[t, attack.shooter] = attack.victim, attack.fired
    return {
        "kinds": tuple(kind for kind, (count, _) in sides.items() for _ in range(count)),
        "units": tuple(unit for count, unit in sides.values() for _ in range(count)),
        "radii": tuple(battle.each("separation")[:, 0].tolist()),
        "bounds": (float(low[0]), float(low[1]), float(high[0]), float(high[1])),
        "ground": layout.walkable(battle.rules),
        "places": np.stack([units.x, units.y], axis=-1),
        "health": units.health / health,
        "shield": units.shield / np.maximum(shield, 1.0) if shield.any() else None,
        "aims": aims,
        "fired": fired,
        "sight": SIGHT,
        "reach": battle.reach,
        "action_names": action_names(layout.enemies),
        "events": battle_events(replay),
        "outcome": battle_facts(replay, replay.length)["battle"],
    }


def action_names(enemies: int) -> tuple[str, ...]:
    """What the actions on a SMAC map do. Enemies are counted from 1, as pages do."""
    return ("no-op", "stop", "north", "south", "east", "west", *(f"attack {k + 1}" for k in range(enemies)))


def battle_events(replay: Replay) -> tuple[tuple[int, str], ...]:
    """Who falls when, and how it ends."""
    alive, a = replay.states.units.health > 0, replay.env.spec.num_agents
    names = [f"agent {k + 1}" for k in range(a)] + [f"enemy {k + 1}" for k in range(alive.shape[1] - a)]
    falls = [(int(t) + 1, f"{names[k]} falls") for t, k in np.argwhere(alive[:-1] & ~alive[1:])]
    return *falls, (replay.length, f"the battle is {battle_facts(replay, replay.length)['battle']}")


def believed_in_battle(replay: Replay, seat: int, seen: np.ndarray) -> np.ndarray:
    """An agent knows places relative to its own only; a picture shows where that is."""
    units = replay.states.units
    here = np.stack([units.x, units.y], axis=-1)[:-1, seat]  # [T, 2]
    return here[:, None] + believed_offsets(cast(Smac, replay.env), seat, replay.obs[:-1, seat], seen)


def believed_offsets(env: Smac, seat: int, obs: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Where the agent in a seat thinks its teammates are, relative to itself: from what it sees, [..., O], and what it
    thinks that they see, [..., K, O], to [..., K, 2]; NaN for those of whom nothing tells it.

    A teammate's observation says where units are relative to the teammate. Of a unit that the agent sees as well, and
    of itself, it knows the place: each says where the teammate must be. The teammate's own row says nothing, and that
    the agent may see the teammate is not used: this is what the model thinks.

    A decoder that is not sure predicts a mean over seeing (the features) and not seeing (zeros). How likely it finds
    seeing is the mark of an ally in sight; enemies have no such mark, but the agent knows their health. Features are
    divided by that chance, and means weighted with it; what is more likely not seen does not count.
    """
    m = env.spec.num_agents
    known = env.sightings(obs, seat)  # [..., N, 6]
    is_ally = np.arange(known.shape[-2]) < m
    health = known[..., 4]

    def place(k: int, teammate: int) -> np.ndarray:
        thought = env.sightings(seen[..., k, :], teammate)
        chance = np.where(is_ally, thought[..., 0], thought[..., 4] / np.where(health > 0, health, 1.0))
        chance = np.clip(chance, 0.0, 1.0)
        tells = (health > 0) & (chance >= 0.5) & (np.arange(len(is_ally)) != teammate)
        weight = np.where(tells, chance, 0.0)[..., None]  # [..., N, 1]
        from_each = known[..., 2:4] - thought[..., 2:4] / np.maximum(chance, 0.5)[..., None]
        total = weight.sum(-2)
        mean = (weight * from_each).sum(-2) / np.where(total > 0, total, 1.0)
        return SIGHT * np.where(total > 0, mean, np.nan)

    others = [k for k in range(m) if k != seat]
    return np.stack([place(k, teammate) for k, teammate in enumerate(others)], axis=-2)


def show_foraging(replay: Replay) -> dict[str, Any]:
    """The field of level-based foraging: players and food, with x to the right and y up. Food is there until it is
    taken, as others are alive."""
    env, states = cast(Lbf, replay.env), replay.states
    m, existed = env.num_agents, np.flatnonzero(states.food_level[0] > 0)
    cells = np.concatenate([states.player, states.food[:, :, existed]], axis=2)  # [T + 1, 2, E]
    there = states.food_level[:, existed] > 0
    field = (-0.5, 0.5 - env.rows, env.width - 0.5, 0.5)
    return {
        "kinds": ("player",) * m + ("food",) * len(existed),
        "radii": (0.34,) * (m + len(existed)),
        "levels": (*states.player_level[0].tolist(), *states.food_level[0, existed].tolist()),
        "bounds": tuple(side + beyond for side, beyond in zip(field, (-0.2, -0.2, 0.2, 0.2), strict=True)),
        "ground": field,
        "places": np.stack([cells[:, 1], -cells[:, 0]], axis=-1),
        "health": np.concatenate([np.ones((len(there), m)), there], axis=1),
        "sight": None if env.sight is None else float(env.sight),
        "action_names": ("none", "north", "south", "west", "east", "load"),
        "events": tuple(event for t in range(1, replay.length + 1) for event in _takings(replay, t)),
        "outcome": "cleared" if replay.metrics["cleared"][-1] > 0 else "",
    }


def _takings(replay: Replay, step: int) -> list[tuple[int, str]]:
    """Who took which food with a step."""
    taken: dict[int, list[str]] = {}
    for load in loads(replay, step):
        if load.taken:
            taken.setdefault(load.food, []).append(str(load.player + 1))
    level = replay.states.food_level[0]
    return [
        (step, f"food of level {level[food]} taken by {'agent' if len(by) == 1 else 'agents'} {' + '.join(by)}")
        for food, by in taken.items()
    ]


def believed_in_field(replay: Replay, seat: int, seen: np.ndarray) -> np.ndarray:
    """A player's observation holds its own cell after all food, counted from the corner of what it sees: of use where
    that is the field's."""
    del seat
    env = cast(Lbf, replay.env)
    row, col = (seen[..., 3 * env.foods + k] for k in range(2))
    return np.stack([col, -row], axis=-1) if env.sight is None else np.full((*row.shape, 2), np.nan)


WORLDS: dict[type, World] = {
    PredatorPrey: World(show_hunt, believed_in_hunt),
    Smac: World(show_battle, believed_in_battle),
    Lbf: World(show_foraging, believed_in_field),
}
"""By the class of the environment."""
