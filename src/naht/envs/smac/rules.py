"""The constants of units and rules, as data. Distances in map units, times in ticks: 16 ticks are one game second.

`sc2` has the numbers of the maps that SMAC plays and of the game's data, which are given per game second of 16 game
loops. `smaclite` has those of SMAClite, which takes figures per real second (1.4 game seconds) for figures per game
second, and some quirks. It serves to check this simulator against recordings of that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

TICKS_PER_SECOND = 16
TICKS_PER_STEP = 8
SIGHT = 9.0
"""How far an agent sees: strictly less."""
ATTACK_RANGE = 6.0
"""How far away an enemy may be to be named as a target; the unit walks up if its weapon has a shorter reach."""
SCAN_RANGE = 5.0
"""How near an ally must come for an enemy to notice it, at least; those with a longer reach notice whom they reach."""
LEASH = 21.0
"""How far a unit of the game goes after a target that it has picked by itself; enemies see everything, without fog."""
SHIELD_DELAY = 10.0 * TICKS_PER_SECOND
"""Ticks without damage until a shield recovers."""
SHIELD_RECOVERY = 2.0 / TICKS_PER_SECOND
"""Shield points per tick."""
MOVE_AMOUNT = 2.0
"""A move heads for a point this far away."""
KILL_VALUE, WIN_VALUE, LARGEST_RETURN = 10.0, 200.0, 20.0


@dataclass(frozen=True)
class Unit:
    """A type of unit."""

    health: float
    shield: float
    armour: float
    """Taken off every hit on the hull, not off hits on the shield."""
    damage: float
    """Per hit on an unarmoured unit."""
    armoured_bonus: float
    """Added against units that count as armoured."""
    hits: int
    """Per shot."""
    armoured: bool
    period: float
    """Ticks between shots, before any jitter."""
    range: float
    """Of the weapon, from edge to edge."""
    speed: float
    """Distance per tick."""
    radius: float
    """For ranges."""
    separation: float
    """Radius for collisions."""
    cooldown_scale: float
    """The global state shows cooldowns divided by this."""
    pursuit: float = 0.0
    """As an enemy that notices nobody any more, it goes on after the ally it was after while that is this near to one
    of the enemies. Otherwise it gives up and marches on."""

    def damage_to(self, other: Unit) -> float:
        return self.damage + (self.armoured_bonus if other.armoured else 0.0)


@dataclass(frozen=True)
class Crowding:
    """How units that want to be in the same place come to terms: velocities that would make two of them overlap are
    taken back, all at once and several times over, because taking back one may create another."""

    sweeps: int
    """How many times."""
    firmness: float
    """What part of the overlap is taken back each time."""
    foresight: bool
    """Already when units would come to overlap in this tick; otherwise only when they touch."""
    standing_yield: bool
    """Do units that stand and overlap move apart? Nobody else pushes who stands."""
    closest: float
    """Taking back leaves some overlaps. Two that would come closer than this part of the sum of their radii, and
    closer than they are, stay where they are in this tick, and so does who would then come too close to them."""


@dataclass(frozen=True)
class Rules:
    """Unit types and everything else in which the presets differ."""

    units: dict[str, Unit]
    jitter: tuple[float, float]
    """Every shot's period is longer by a number of ticks drawn uniformly from this interval."""
    spares_corpses: bool
    """A shot at a unit that has just died is not fired, and the weapon stays ready. Otherwise it is lost."""
    reward: Literal["net", "damage"]
    """Pay the absolute change of the enemies' health and shields over a step (a shield that recovers counts too), or
    the damage done. A win pays its bonus in 'net' only if an ally lives."""
    crowding: Crowding
    wall_ticks: float
    """No unit goes faster than what brings it to a wall in this many ticks."""
    wall_gap: tuple[bool, bool]
    """Does a unit's radius count towards walls in x and in y?"""
    closed_map: bool
    """Is the edge of the map a wall?"""
    ring: int
    """Cells along the edge of an open map that are blocked."""
    scan_from: Literal["edge", "centre"]
    """What part of an enemy its scan range begins at; it ends at the other's edge."""
    help_radius: float
    """Enemies this near to one that is being shot at, from its centre to their edge, notice the shooter as well."""
    numbered_by_place: bool
    """Allies are numbered by x, then y, of where they start. Otherwise in the order in which they are put down."""
    walk_round: bool = False
    """Units on their way to a target go round those that stand in the way."""
    range_slop: float = 0.0
    """An enemy that has fired hits its target until that is this much beyond the range of its weapon."""
    aim_ticks: float = 0.0
    """How long a unit that was not shooting stands before it fires."""


def _unit(period: float, speed: float, cooldown_scale: float | None = None, **numbers: Any) -> Unit:
    """From a period and a speed in seconds. Default of the scale: the period; of the other numbers: none."""
    plain = {"shield": 0.0, "armour": 0.0, "armoured_bonus": 0.0, "hits": 1, "armoured": False}
    ticks = period * TICKS_PER_SECOND
    return Unit(
        period=ticks,
        speed=speed / TICKS_PER_SECOND,
        cooldown_scale=cooldown_scale or ticks,
        **plain | {"separation": numbers["radius"]} | numbers,
    )


_MARINE = {"health": 45.0, "damage": 6.0, "range": 5.0, "radius": 0.375}
_STALKER = {"health": 80.0, "shield": 80.0, "armour": 1.0, "armoured": True, "range": 6.0, "radius": 0.625}
_ZEALOT = {"health": 100.0, "shield": 50.0, "armour": 1.0, "damage": 8.0, "hits": 2, "range": 0.1, "radius": 0.5}

RULES: dict[str, Rules] = {
    "sc2": Rules(
        units={
            "marine": _unit(0.8608, 2.25, 15.0, **_MARINE),
            "stalker": _unit(1.44, 2.9531, 35.0, damage=10.0, armoured_bonus=4.0, **_STALKER),
            # Marines are never quicker than marines: whom they are after does not get away (docs/smac.md).
            "zealot": _unit(1.2, 2.25, 22.0, separation=0.375, pursuit=LEASH, **_ZEALOT),
        },
        jitter=(-1.0, 2.0),
        spares_corpses=True,
        reward="net",
        crowding=Crowding(sweeps=6, firmness=0.9, foresight=True, standing_yield=True, closest=0.9),
        wall_ticks=1.0,
        wall_gap=(True, True),
        closed_map=True,
        ring=0,
        scan_from="edge",
        help_radius=4.0,
        numbered_by_place=True,
    ),
    "smaclite": Rules(
        units={
            "marine": _unit(0.61, 3.15, **_MARINE),
            "stalker": _unit(1.34, 4.13, damage=13.0, armoured_bonus=5.0, **_STALKER),
            "zealot": _unit(0.86, 3.15, **_ZEALOT),
        },
        jitter=(0.0, 0.0),
        spares_corpses=False,
        reward="damage",
        crowding=Crowding(sweeps=2, firmness=0.6, foresight=False, standing_yield=False, closest=0.0),
        wall_ticks=16.0,
        wall_gap=(True, False),
        closed_map=False,
        ring=3,
        scan_from="centre",
        help_radius=0.0,
        numbered_by_place=False,
    ),
}
