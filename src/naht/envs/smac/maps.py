"""The maps, as data, and where units start on them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

import numpy as np

from naht.envs.smac.rules import Rules, Unit

SIZE = 32.0
"""Width and height of every map."""
CENTRE = SIZE / 2
SPAWN_GAP = 0.05


@dataclass(frozen=True)
class Map:
    """A battle: equal units on either side."""

    smac_name: str
    """What SMAC calls it."""
    allies: int
    ally: str
    """Type of unit."""
    enemies: int
    enemy: str
    limit: int
    """Steps per episode."""
    terrain: Literal["band", "open"]
    """'band': rows 8 to 23 of the map can be walked on; 'open': all of it."""

    allies_at: tuple[float, float] = (9.0, 16.0)
    enemies_at: tuple[float, float] = (23.0, 16.0)
    march_to: tuple[float, float] = (9.0, 16.0)
    """Where enemies go that are after nobody."""

    def walkable(self, rules: Rules) -> tuple[float, float, float, float]:
        """The rectangle of open cells: left, bottom, right, top."""
        if self.terrain == "band":
            return 0.0, 8.0, SIZE, 24.0
        return (float(rules.ring),) * 2 + (SIZE - rules.ring,) * 2

    def start(self, rules: Rules) -> np.ndarray:
        """Positions [2, allies + enemies]."""
        allies = formation(self.allies, rules.units[self.ally], self.allies_at, 1)
        enemies = formation(self.enemies, rules.units[self.enemy], self.enemies_at, -1)
        if rules.numbered_by_place:
            allies = allies[:, np.lexsort(allies[::-1])]
        return np.concatenate([allies, enemies], axis=1).astype(np.float32)


def formation(count: int, unit: Unit, centre: tuple[float, float], facing: int) -> np.ndarray:
    """Units in a square block, row by row: [2, count]. Facing 1: in the order of x and y; -1: against it."""
    side = ceil(sqrt(count))
    row, column = np.divmod(np.arange(count), side)
    size = 2 * unit.radius
    width = min(count, side) * size
    height = (row[-1] + 1) * size + (side - 1) * SPAWN_GAP  # rows that stay empty leave their gap
    x = unit.radius + column * (size + SPAWN_GAP) - width / 2
    y = unit.radius + row * (size + SPAWN_GAP) - height / 2
    return np.array(centre)[:, None] + facing * np.stack([x, y])


def _marines(smac_name: str, allies: int, enemies: int, limit: int) -> Map:
    return Map(smac_name, allies, "marine", enemies, "marine", limit, "band")


MAPS: dict[str, Map] = {
    "3m": _marines("3m", 3, 3, 60),
    "8m": _marines("8m", 8, 8, 120),
    "5v6": _marines("5m_vs_6m", 5, 6, 70),
    "8v9": _marines("8m_vs_9m", 8, 9, 120),
    "10v11": _marines("10m_vs_11m", 10, 11, 150),
    "3s5z": Map("3s_vs_5z", 3, "stalker", 5, "zealot", 250, "open"),
}
