"""A battle of the SMAC tasks, one unit after the other in plain Python: an oracle for `naht.envs.smac`.

Written from the description of the rules, not from the simulator, and as slow as it is simple. Constants are the
project's data. So are two conventions: what the random words of a step mean, and how crowds come to terms.
"""

from dataclasses import dataclass, field
from math import ceil, hypot, sqrt
from typing import NamedTuple

import numpy as np

from naht.envs.smac.maps import Map
from naht.envs.smac.rules import (
    ATTACK_RANGE,
    KILL_VALUE,
    LARGEST_RETURN,
    MOVE_AMOUNT,
    SCAN_RANGE,
    SHIELD_DELAY,
    SHIELD_RECOVERY,
    SIGHT,
    TICKS_PER_STEP,
    WIN_VALUE,
    Rules,
    Unit,
)

NO_OP, STOP, NORTH, SOUTH, EAST, WEST, ATTACK = range(7)
DIRECTION = {NORTH: (0, 1), SOUTH: (0, -1), EAST: (1, 0), WEST: (-1, 0)}
single = np.float32
"""Where a comparison decides something, numbers are rounded as in the simulator."""


@dataclass(eq=False)
class Soldier:
    """A unit in the battle."""

    kind: Unit
    x: np.float32
    y: np.float32
    health: float
    shield: float
    cooldown: np.float32 = single(0)
    delay: float = 0.0
    target: "Soldier | None" = None
    engaged: "Soldier | None" = None
    """At whom an enemy has been shooting when a tick begins."""
    # What it does in a tick:
    shooting: bool = False
    velocity: tuple[float, float] = (0.0, 0.0)

    @property
    def alive(self) -> bool:
        return self.health > 0


class Order(NamedTuple):
    """What an ally does throughout a step: attack somebody, go somewhere, or neither."""

    attack: Soldier | None = None
    go: tuple[np.float32, np.float32] | None = None


class Outcome(NamedTuple):
    reward: float
    won: bool
    ended: bool


def distance(a: Soldier, b: Soldier) -> np.float32:
    dx, dy = b.x - a.x, b.y - a.y
    return np.sqrt(dx * dx + dy * dy)


def spawn(count: int, radius: float, point: tuple[float, float], sign: int) -> list[tuple[float, float]]:
    """A grid of units around a team's point, row by row."""
    side = ceil(sqrt(count))
    spacing = 2 * radius + 0.05
    rows = ceil(count / side)
    width = min(count, side) * 2 * radius
    height = 2 * rows * radius + (side - 1) * 0.05
    places = []
    for k in range(count):
        i, j = k // side, k % side
        x = point[0] - sign * width / 2 + sign * (radius + j * spacing)
        y = point[1] - sign * height / 2 + sign * (radius + i * spacing)
        places.append((x, y))
    return places


@dataclass
class Battle:
    """The units of a battle and its rules."""

    layout: Map
    rules: Rules
    allies: list[Soldier] = field(default_factory=list)
    enemies: list[Soldier] = field(default_factory=list)
    closest_call: float = np.inf
    """How near any decision of the last step or view was to the other outcome."""
    shortest_way: float = np.inf
    """Of anybody to where it wanted to go in the last step; the direction of a short one is a matter of rounding."""
    damage: float = 0.0
    """Done to enemies in the last step."""

    def __post_init__(self) -> None:
        ally, enemy = self.rules.units[self.layout.ally], self.rules.units[self.layout.enemy]
        places = spawn(self.layout.allies, ally.radius, self.layout.allies_at, 1)
        if self.rules.numbered_by_place:
            places = sorted(places, key=lambda place: (round(place[0], 6), round(place[1], 6)))
        self.allies = [Soldier(ally, single(x), single(y), ally.health, ally.shield) for x, y in places]
        places = spawn(self.layout.enemies, enemy.radius, self.layout.enemies_at, -1)
        self.enemies = [Soldier(enemy, single(x), single(y), enemy.health, enemy.shield) for x, y in places]

    @property
    def everybody(self) -> list[Soldier]:
        return self.allies + self.enemies

    # --- decisions that rounding may turn ---

    def within(self, length: float, limit: float) -> bool:
        self.closest_call = min(self.closest_call, abs(float(length) - limit))
        return length <= single(limit)

    def nearer_than(self, length: float, limit: float) -> bool:
        self.closest_call = min(self.closest_call, abs(float(length) - limit))
        return length < single(limit)

    def in_reach(self, shooter: Soldier, victim: Soldier) -> bool:
        reach = shooter.kind.range + shooter.kind.radius + victim.kind.radius
        slop = self.rules.range_slop if victim is shooter.engaged else 0.0
        return self.within(distance(shooter, victim), reach + slop)

    # --- a step ---

    def step(self, actions, bits) -> Outcome:
        """Actions [A] that are available, bits [ticks, N] uint32."""
        self.closest_call, self.shortest_way, self.damage = np.inf, np.inf, 0.0
        before = [(e.health, e.shield) for e in self.enemies]
        orders = [self.order(u, int(action)) for u, action in zip(self.allies, actions, strict=True)]
        for t in range(TICKS_PER_STEP):
            self.tick(orders, bits[t])

        lost = sum(h + s - e.health - e.shield for (h, s), e in zip(before, self.enemies, strict=True))
        killed = sum(h > 0 and not e.alive for (h, _), e in zip(before, self.enemies, strict=True))
        ally_left, enemy_left = (any(u.alive for u in side) for side in (self.allies, self.enemies))
        if self.rules.reward == "net":
            won = not enemy_left and ally_left
            raw = abs(lost + KILL_VALUE * killed)
        else:
            won = not enemy_left
            raw = self.damage + KILL_VALUE * killed
        if won:
            raw += WIN_VALUE
        kind = self.enemies[0].kind
        most = len(self.enemies) * (kind.health + kind.shield + KILL_VALUE) + WIN_VALUE
        return Outcome(raw / (most / LARGEST_RETURN), won, not (ally_left and enemy_left))

    def order(self, unit: Soldier, action: int) -> Order:
        if action >= ATTACK:
            return Order(attack=self.enemies[action - ATTACK])
        if action in DIRECTION:
            dx, dy = DIRECTION[action]
            return Order(go=(unit.x + single(MOVE_AMOUNT * dx), unit.y + single(MOVE_AMOUNT * dy)))
        return Order()

    def tick(self, orders: list[Order], words) -> None:
        """A 16th of a second; words [N] uint32."""
        for u, order in zip(self.allies, orders, strict=True):
            u.target = order.attack if u.alive and order.attack is not None and order.attack.alive else None
        for e in self.enemies:
            e.engaged = e.target if e.cooldown > 0 else None
            if e.alive:
                e.target = self.choose(e)
        wishes = {}
        for u, order in zip(self.allies, orders, strict=True):
            if u.alive:
                wishes[u] = self.wish_of_ally(u, order)
        for e in self.enemies:
            if e.alive:
                wishes[e] = self.wish_of_enemy(e)
        self.agree_on_velocities(wishes)
        low, high = self.rules.jitter
        ranks = [int(word) >> 16 for word in words]
        jitters = [low + (high - low) * (int(word) & 0xFFFF) / 2**16 for word in words]
        self.take_turns([order.attack for order in orders] + [e.target for e in self.enemies], ranks, jitters)

    def take_turns(self, aimed_at: list[Soldier | None], ranks: list[int], jitters: list[float]) -> None:
        """One after the other by rank; among equals allies first, then by number."""
        everybody = self.everybody
        for i in sorted(range(len(everybody)), key=lambda i: (ranks[i], i)):
            self.take_turn(everybody[i], aimed_at[i], jitters[i])

    def take_turn(self, unit: Soldier, aimed_at: Soldier | None, jitter: float) -> None:
        if not unit.alive:
            return
        unit.x, unit.y = (single(float(at) + v) for at, v in zip((unit.x, unit.y), unit.velocity, strict=True))
        unit.cooldown = max(single(0), unit.cooldown - single(1))
        unit.delay = max(0.0, unit.delay - 1)
        if unit.delay == 0 and unit.shield < unit.kind.shield:
            unit.shield = min(unit.kind.shield, unit.shield + SHIELD_RECOVERY)
        if unit.shooting and unit.cooldown == 0:
            if self.rules.spares_corpses and not aimed_at.alive:
                return
            self.fire(unit, aimed_at)
            unit.cooldown = single(unit.kind.period) + single(jitter)
        if not unit.shooting and self.rules.aim_ticks:
            unit.cooldown = max(unit.cooldown, single(self.rules.aim_ticks + 1))

    def fire(self, shooter: Soldier, victim: Soldier) -> None:
        for _ in range(shooter.kind.hits):
            if not victim.alive:
                return
            strength = shooter.kind.damage
            if victim.kind.armoured:
                strength += shooter.kind.armoured_bonus
            absorbed = min(strength, victim.shield)
            victim.shield -= absorbed
            wound = max(0.0, min(strength - absorbed - victim.kind.armour, victim.health))
            victim.health -= wound
            if victim.kind.shield > 0:
                victim.delay = SHIELD_DELAY
            if victim in self.enemies:
                self.damage += absorbed + wound

    # --- what units want ---

    def choose(self, enemy: Soldier) -> Soldier | None:
        """Whom an enemy is after in this tick."""
        held = enemy.target
        if held is not None and held.alive and (held.target is enemy or self.in_reach(enemy, held)):
            return held
        largest = max(u.kind.radius for u in self.everybody)
        scan = max(SCAN_RANGE, enemy.kind.range)
        if self.rules.scan_from == "edge":
            scan += enemy.kind.radius
        best, best_rank = None, np.inf
        for u in self.allies:
            if not u.alive:
                continue
            d = distance(enemy, u)
            if not (self.nearer_than(d, scan + u.kind.radius) or u.target is enemy or self.is_called(enemy, u)):
                continue
            rank = d if self.within(d, max(scan + u.kind.radius, SCAN_RANGE + largest)) else 2e9
            if best is not None and rank < 2e9:
                self.closest_call = min(self.closest_call, abs(float(rank) - float(best_rank)))
            if rank < best_rank:
                best, best_rank = u, rank
        if best is None and enemy.kind.pursuit and held is not None and held.alive:
            near = [self.nearer_than(distance(e, held), enemy.kind.pursuit) for e in self.enemies if e.alive]
            return held if any(near) else None
        return best

    def is_called(self, enemy: Soldier, shooter: Soldier) -> bool:
        """Does somebody near this enemy, which is being shot at, call for help against the shooter?"""
        victim = shooter.target
        if not self.rules.help_radius or victim is None or not self.in_reach(shooter, victim):
            return False
        return self.within(distance(enemy, victim), self.rules.help_radius + enemy.kind.radius)

    def wish_of_ally(self, unit: Soldier, order: Order) -> tuple[float, float] | None:
        """Where to, relative to its place. Notes whether it shoots."""
        unit.shooting = False
        if order.go is not None:
            return order.go[0] - unit.x, order.go[1] - unit.y
        if order.attack is None:
            return None
        if order.attack.alive or not self.rules.spares_corpses:
            unit.shooting = self.in_reach(unit, order.attack)
        if unit.shooting or not order.attack.alive:
            return None
        return order.attack.x - unit.x, order.attack.y - unit.y

    def wish_of_enemy(self, unit: Soldier) -> tuple[float, float] | None:
        unit.shooting = unit.target is not None and self.in_reach(unit, unit.target)
        if unit.shooting:
            return None
        if unit.target is not None:
            return unit.target.x - unit.x, unit.target.y - unit.y
        return single(self.layout.march_to[0]) - unit.x, single(self.layout.march_to[1]) - unit.y

    # --- crowds ---

    def agree_on_velocities(self, wishes: dict[Soldier, tuple[float, float] | None]) -> None:
        """Full speed along the wishes. Then, several times over and for everybody at once: whoever would come to
        overlap with a neighbour takes back its part of the overlap. At last, walls."""
        crowding = self.rules.crowding
        living = list(wishes)
        moving = {}
        for u, wish in wishes.items():
            length = 0.0 if wish is None else hypot(float(wish[0]), float(wish[1]))
            if wish is not None:
                self.shortest_way = min(self.shortest_way, length)
            moving[u] = length > 0
            u.velocity = tuple(u.kind.speed * float(w) / length for w in wish) if length > 0 else (0.0, 0.0)
        if self.rules.walk_round:
            self.walk_round([u for u in living if moving[u]], [u for u in living if not moving[u]])
        neighbours = {u: self.neighbours(u, living, moving) for u in living}
        for _ in range(crowding.sweeps):
            adjusted = {}
            for u in living:
                vx, vy = u.velocity
                for other, part, room, nx, ny in neighbours[u]:
                    apart = nx * (u.velocity[0] - other.velocity[0]) + ny * (u.velocity[1] - other.velocity[1])
                    overlap = -(room + apart)
                    if overlap > 0:
                        vx += crowding.firmness * part * overlap * nx
                        vy += crowding.firmness * part * overlap * ny
                speed = hypot(vx, vy)
                if speed > u.kind.speed:
                    vx, vy = vx * u.kind.speed / speed, vy * u.kind.speed / speed
                adjusted[u] = vx, vy
            for u in living:
                u.velocity = adjusted[u]
        for u in living:
            u.velocity = self.before_walls(u)
        while crowded := self.too_close(living):
            for u in crowded:
                u.velocity = 0.0, 0.0

    def walk_round(self, moving: list[Soldier], standing: list[Soldier]) -> None:
        """Who is on the way to a target and has somebody standing right in front of it turns aside."""
        for u in moving:
            if u in self.allies and u.target is None:
                continue
            dx, dy = u.velocity[0] / u.kind.speed, u.velocity[1] / u.kind.speed
            in_the_way = []
            for other in standing:
                px, py = float(other.x - u.x), float(other.y - u.y)
                touching = u.kind.separation + other.kind.separation
                along, left = px * dx + py * dy, dx * py - dy * px
                if not self.nearer_than(hypot(px, py), touching + 0.25):
                    continue
                self.closest_call = min(self.closest_call, abs(along))
                if along > 0 and self.nearer_than(abs(left), touching):
                    in_the_way.append(left)
            if not in_the_way:
                continue
            lean = sum(in_the_way)
            self.closest_call = min(self.closest_call, abs(abs(lean) - 1e-3))
            to_the_left = lean < 0 if abs(lean) > 1e-3 else self.everybody.index(u) % 2 == 0
            vx, vy = u.velocity
            u.velocity = (-vy, vx) if to_the_left else (vy, -vx)

    def too_close(self, living: list[Soldier]) -> list[Soldier]:
        """Those on their way who would come closer to somebody than the rules allow and than they are."""
        found = []
        for u in living:
            for other in living:
                if other is u or u.velocity == other.velocity == (0.0, 0.0):
                    continue
                allowed = self.rules.crowding.closest * (u.kind.separation + other.kind.separation)
                now = hypot(float(u.x) - float(other.x), float(u.y) - float(other.y))
                dx, dy = (
                    float(a) + v - float(b) - w
                    for a, b, v, w in zip((u.x, u.y), (other.x, other.y), u.velocity, other.velocity, strict=True)
                )
                if self.nearer_than(hypot(dx, dy), min(allowed, now)) and u.velocity != (0.0, 0.0):
                    found.append(u)
                    break
        return found

    def neighbours(self, unit: Soldier, living: list[Soldier], moving: dict[Soldier, bool]) -> list[tuple]:
        """Those it has to give way to: (who, its part in giving way, room between them, direction away)."""
        found = []
        crowding = self.rules.crowding
        widest = max(u.kind.separation for u in self.everybody)
        for other in living:
            touching = unit.kind.separation + other.kind.separation
            if moving[unit]:
                part = 0.5 if moving[other] else 1.0
            else:
                part = 0.5 if crowding.standing_yield and not moving[other] else 0.0
            if other is unit or part == 0:
                continue
            px, py = float(unit.x) - float(other.x), float(unit.y) - float(other.y)
            apart = hypot(px, py)
            room = apart - touching
            if room > 1.01 * (unit.kind.speed + other.kind.speed):  # they can't meet in this tick
                continue
            if not crowding.foresight and not self.within(distance(unit, other), widest + unit.kind.separation):
                continue
            found.append((other, part, room, px / apart, py / apart))
        return found

    def before_walls(self, unit: Soldier) -> tuple[float, float]:
        left, bottom, right, top = self.layout.walkable(self.rules)
        low, high = [left, bottom], [right, top]
        velocity = []
        for axis, (at, v) in enumerate(zip((float(unit.x), float(unit.y)), unit.velocity, strict=True)):
            gap = unit.kind.separation if self.rules.wall_gap[axis] else 0.0
            # Without walls along the edge of the map, only cells inside it can be blocked.
            if self.rules.closed_map or low[axis] > 0:
                v = max(v, (low[axis] + gap - at) / self.rules.wall_ticks)
            if self.rules.closed_map or high[axis] < 32:
                v = min(v, (high[axis] - gap - at) / self.rules.wall_ticks)
            velocity.append(v)
        return tuple(velocity)

    # --- what the agents are shown ---

    def can_go(self, unit: Soldier, action: int) -> bool:
        """Is the cell one step ahead open? SMAC cuts decimals off; SMAClite wants the point to lie on the map."""
        dx, dy = DIRECTION[action]
        x, y = unit.x + single(dx), unit.y + single(dy)
        self.closest_call = min(self.closest_call, abs(float(x) - round(float(x))), abs(float(y) - round(float(y))))
        if not self.rules.closed_map and (x < 0 or y < 0):
            return False
        left, bottom, right, top = self.layout.walkable(self.rules)
        return left <= int(x) < right and bottom <= int(y) < top

    def masks(self) -> np.ndarray:
        self.closest_call = np.inf
        table = np.zeros((len(self.allies), ATTACK + len(self.enemies)), bool)
        for u, row in zip(self.allies, table, strict=True):
            if not u.alive:
                row[NO_OP] = True
                continue
            row[STOP] = True
            for action in DIRECTION:
                row[action] = self.can_go(u, action)
            for j, e in enumerate(self.enemies):
                row[ATTACK + j] = e.alive and self.within(distance(u, e), ATTACK_RANGE)
        return table

    def observations(self) -> np.ndarray:
        masks = self.masks()
        rows = []
        for i, u in enumerate(self.allies):
            row = [float(masks[i, action]) for action in DIRECTION]
            for j, e in enumerate(self.enemies):
                row += self.seen(u, e, float(masks[i, ATTACK + j]))
            for k, other in enumerate(self.allies):
                if k != i:
                    row += self.seen(u, other, 1.0)
            row += [u.health / u.kind.health] + ([u.shield / u.kind.shield] if u.kind.shield else [])
            rows.append(np.array(row) if u.alive else np.zeros(len(row)))
        return np.array(rows)

    def seen(self, unit: Soldier, other: Soldier, first: float) -> list[float]:
        d = distance(unit, other)
        visible = other.alive and self.nearer_than(d, SIGHT)
        row = [
            first,
            d / SIGHT,
            (other.x - unit.x) / SIGHT,
            (other.y - unit.y) / SIGHT,
            other.health / other.kind.health,
        ]
        if other.kind.shield:
            row.append(other.shield / other.kind.shield)
        return row if visible else [0.0] * len(row)

    def global_state(self, last_actions=None) -> np.ndarray:
        """Last actions [A], if they are part of it: -1 before the first step."""
        numbers = []
        for u in self.everybody:
            row = [u.health / u.kind.health]
            if u in self.allies:
                row.append(u.cooldown / u.kind.cooldown_scale)
            row += [(u.x - 16) / 32, (u.y - 16) / 32]
            if u.kind.shield:
                row.append(u.shield / u.kind.shield)
            numbers += row if u.alive else [0.0] * len(row)
        if last_actions is not None:
            for action in last_actions:
                numbers += [float(k == action) for k in range(ATTACK + len(self.enemies))]
        return np.array(numbers)
