"""What happens in a tick: who is aimed at, who moves where, who hits whom.

All arrays carry worlds on their *last* axis, B: that is what a processor's vectors run along. A is the number of
allies, E of enemies, N of all units, allies first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.envs.base import Array
from naht.envs.smac.maps import SIZE, Map
from naht.envs.smac.rules import SCAN_RANGE, SHIELD_DELAY, SHIELD_RECOVERY, Rules, Unit

FAR_AWAY = 1e9
NOBODY = -1
IN_FRONT = 0.25
"""How much room between two units still counts as one standing right in front of the other."""


class Units(NamedTuple):
    """The situation of all units."""

    x: Array  # [N, B]
    y: Array  # [N, B]
    health: Array  # [N, B], 0: dead
    shield: Array  # [N, B]
    cooldown: Array  # [N, B] ticks until the weapon is ready
    delay: Array  # [N, B] ticks until the shield recovers
    target: Array  # [E, B] int32, the ally that each enemy is after, or NOBODY


class Orders(NamedTuple):
    """What the allies do throughout a step."""

    aim: Array  # [A, E, B] bool, at most one enemy each
    moving: Array  # [A, B] bool
    x: Array  # [A, B], where to
    y: Array  # [A, B]


class Chance(NamedTuple):
    """What is random in a tick."""

    order: Array  # [N, B], units act in the order of these numbers, then of their indices
    jitter: Array  # [N, B] ticks, added to the period of a shot


class Volley(NamedTuple):
    """One side shooting at the other: K shooters of one type, V units that they may hit."""

    shooter: Unit
    victim: Unit
    at: Array  # [K, V, B] bool, whom each would hit
    before_victim: Array  # [K, V, B] bool, does the shooter act before that one?
    queue: Array  # [K, K, B] bool, i acts before k and aims at the same one; empty where that does not matter
    health: Array  # [V, B] before the tick
    shield: Array  # [V, B]
    delay: Array  # [V, B]

    @property
    def damage(self) -> float:
        return self.shooter.damage_to(self.victim)

    def hits(self, shots: Array) -> Array:
        """Shots [K, V, B] -> hits [V, B]."""
        return self.shooter.hits * shots.astype(jnp.float32).sum(0)

    def early_hits(self, fires: Array) -> Array:
        """Hits [V, B] on each victim before its own turn."""
        return self.hits(self.at & self.before_victim & fires[:, None])

    def all_hits(self, fires: Array) -> Array:
        return self.hits(self.at & fires[:, None])

    def lethal_hits(self, shield: Array) -> Array:
        """How many it takes to bring each victim down to 0, [V, B]."""
        on_shield, spilt = self._into_shield(shield)
        return on_shield + jnp.ceil(jnp.maximum(self.health - spilt, 0.0) / (self.damage - self.victim.armour))

    def _into_shield(self, shield: Array) -> tuple[Array, Array]:
        """Hits that break a shield, and what the last of them leaves for the hull."""
        if not self.victim.shield:
            return jnp.zeros_like(shield), jnp.zeros_like(shield)
        hits = jnp.ceil(shield / self.damage)
        return hits, jnp.maximum(hits * self.damage - shield - self.victim.armour, 0.0)

    def survivors(self, fires: Array) -> Array:
        """Victims [V, B] that come to their own turn."""
        return self.early_hits(fires) < self.lethal_hits(self.shield)

    def worthwhile(self, fires: Array) -> Array:
        """Shooters [K, B] whose victim still lives on their turn."""
        recovered = jnp.where(self.early_hits(fires) == 0, self.recovered(self.delay), self.shield)
        left = jnp.where(self.at, self.lethal_hits(recovered), 0.0).sum(1)
        return self.shooter.hits * (self.queue & fires[:, None]).astype(jnp.float32).sum(0) < left

    def recovered(self, delay: Array) -> Array:
        """Shields [V, B] after the victims' turn, had nobody hit them before."""
        better = jnp.minimum(self.shield + SHIELD_RECOVERY, self.victim.shield)
        return jnp.where(jnp.maximum(delay - 1.0, 0.0) == 0.0, better, self.shield)

    def after(self, hits: Array) -> tuple[Array, Array]:
        """Health and shield after a number of hits [V, B]."""
        hull = self.damage - self.victim.armour
        breaking, spilt = self._into_shield(self.shield)
        lost = jnp.where(hits >= breaking, spilt + (hits - breaking) * hull, 0.0)
        return jnp.maximum(self.health - lost, 0.0), jnp.maximum(self.shield - hits * self.damage, 0.0)

    def strike(self, fires: Array) -> tuple[Array, Array, Array, Array]:
        """The victims' health, shield and delay afterwards [V, B], and what their shields recovered [B]."""
        early, hits = self.early_hits(fires), self.all_hits(fires)
        if not self.victim.shield:
            return self.after(hits)[0], self.shield, self.delay, jnp.zeros_like(self.health[0])
        acts = (early < self.lethal_hits(self.shield)) & (self.health > 0)
        mended = jnp.where(acts & (early == 0), self.recovered(self.delay), self.shield)
        health, shield = self._replace(shield=mended).after(hits)
        delay = jnp.where(early > 0, SHIELD_DELAY, self.delay)
        delay = jnp.where(hits > early, SHIELD_DELAY, jnp.maximum(delay - 1.0, 0.0))
        return health, shield, delay, (mended - self.shield).sum(0)


def _first_of(mask: Array) -> Array:
    """Along the first axis: index of the first True, [K, ...] -> [...]; K where there is none."""
    count = mask.shape[0]
    index = np.arange(count, dtype=np.int32).reshape(-1, *[1] * (mask.ndim - 1))
    return jnp.where(mask, index, count).min(0)


def _settled(rule: Callable[[Array], Array], start: Array) -> Array:
    """Apply a rule again and again, until nothing changes."""

    def changes(last_two: tuple[Array, Array]) -> Array:
        return (last_two[0] != last_two[1]).any()

    return jax.lax.while_loop(changes, lambda last_two: (last_two[1], rule(last_two[1])), (start, rule(start)))[1]


def _queue(order: Array, at: Array) -> Array:
    """Who acts before whom and aims at the same one: order [K, B], at [K, V, B] -> [K, K, B]."""
    index = np.arange(order.shape[0])
    tie = (index[:, None] < index)[..., None]
    earlier = (order[:, None] < order) | ((order[:, None] == order) & tie)
    aimed_at = _first_of(at.swapaxes(0, 1))
    return earlier & (aimed_at[:, None] == aimed_at)


@dataclass(frozen=True, eq=False)
class Battle:
    """A map under given rules."""

    map: Map
    rules: Rules

    @property
    def ally(self) -> Unit:
        return self.rules.units[self.map.ally]

    @property
    def enemy(self) -> Unit:
        return self.rules.units[self.map.enemy]

    @property
    def reach(self) -> float:
        """How far apart the centres of an ally and an enemy that it hits can be."""
        return self.ally.range + self.ally.radius + self.enemy.radius

    def each(self, number: str) -> np.ndarray:
        """A constant of every unit's type, [N, 1]."""
        sides = [(self.map.allies, self.ally), (self.map.enemies, self.enemy)]
        return np.array([[getattr(unit, number)] for count, unit in sides for _ in range(count)], np.float32)

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """How far left, down, right and up the centre of each unit can go, [N, 1] each."""
        left, bottom, right, top = self.map.walkable(self.rules)
        gap_x, gap_y = (self.each("separation") * counts for counts in self.rules.wall_gap)
        if not self.rules.closed_map:
            left, right = -np.inf if left == 0 else left, np.inf if right == SIZE else right
        return left + gap_x, bottom + gap_y, right - gap_x, top - gap_y

    def start(self) -> Units:
        """All units at their places and in good health, in one world (B = 1)."""
        x, y = jnp.asarray(self.map.start(self.rules))[..., None]
        health, shield = jnp.asarray(self.each("health")), jnp.asarray(self.each("shield"))
        none, nobody = jnp.zeros_like(x), jnp.full((self.map.enemies, 1), NOBODY, jnp.int32)
        return Units(x, y, health, shield, cooldown=none, delay=none, target=nobody)

    def tick(self, units: Units, orders: Orders, chance: Chance) -> tuple[Units, Array]:
        """A 16th of a second. Returns the units and how much of the enemies' shields recovered, [B]."""
        a, ally, enemy = self.map.allies, self.ally, self.enemy
        alive = units.health > 0
        dx = units.x[None, a:] - units.x[:a, None]  # [A, E, B]
        dy = units.y[None, a:] - units.y[:a, None]
        distance = jnp.sqrt(dx * dx + dy * dy)
        radii = ally.radius + enemy.radius
        in_reach, in_their_reach = distance <= ally.range + radii, distance <= enemy.range + radii
        if self.rules.range_slop:
            engaged = (units.target == np.arange(a)[:, None, None]) & (units.cooldown[a:] > 0)
            in_their_reach |= engaged & (distance <= enemy.range + radii + self.rules.range_slop)
        able = alive[:a, None] & alive[None, a:]
        aim = orders.aim & able
        noticed = able & self.notices(units, aim, aim & in_reach, distance)
        target = self.choose(units.target, aim, able, noticed, distance, in_their_reach)
        after = target == np.arange(a)[:, None, None]  # [A, E, B]

        shot_at = aim if self.rules.spares_corpses else orders.aim & alive[:a, None]
        shooting = jnp.concatenate([(shot_at & in_reach).any(1), (after & in_their_reach).any(0)])
        goal_x = self.goals(units.x, dx, aim, after, orders.moving, orders.x, self.map.march_to[0])
        goal_y = self.goals(units.y, dy, aim, after, orders.moving, orders.y, self.map.march_to[1])
        length = jnp.sqrt(goal_x * goal_x + goal_y * goal_y)
        moving = alive & ~shooting & (length > 0)
        pace = jnp.where(moving, self.each("speed") / jnp.maximum(length, 1e-9), 0.0)
        vx, vy = goal_x * pace, goal_y * pace
        if self.rules.walk_round:
            pursuing = moving & jnp.concatenate([aim.any(1), jnp.ones_like(alive[a:])])
            vx, vy = self.walk_round(units, vx, vy, pursuing, alive & ~moving)
        x, y = self.move(units, vx, vy, moving, alive)

        units = units._replace(x=x, y=y, target=target)
        return self.fight(units, aim, after, shooting, chance)

    @property
    def scan(self) -> float:
        """How far the centre of an ally that an enemy notices is from its own, at most."""
        own = self.enemy.radius if self.rules.scan_from == "edge" else 0.0
        return max(SCAN_RANGE, self.enemy.range) + self.ally.radius + own

    def notices(self, units: Units, aim: Array, shots: Array, distance: Array) -> Array:
        """Allies that each enemy knows of, [A, E, B]: who is near, who aims at it, and who shoots at one beside it."""
        noticed = (distance < self.scan) | aim
        if not self.rules.help_radius:
            return noticed
        x, y = units.x[self.map.allies :], units.y[self.map.allies :]
        dx, dy = x - x[:, None], y - y[:, None]  # [E, E, B]
        beside = jnp.sqrt(dx * dx + dy * dy) <= self.rules.help_radius + self.enemy.radius
        return noticed | (shots[:, :, None] & beside).any(1)

    def choose(self, target: Array, aim: Array, able: Array, noticed: Array, distance: Array, in_reach: Array) -> Array:
        """Whom each enemy is after, [E, B]. It keeps an ally that aims at it or is in reach of its weapon. Otherwise it
        takes the nearest one that it notices; those far away come last. If it notices nobody, it pursues the one it was
        after as long as an enemy is near enough to that, or gives up."""
        a = self.map.allies
        held = (target == np.arange(a)[:, None, None]) & able
        kept = (held & (aim | in_reach)).any(0)
        far = max(self.scan, SCAN_RANGE + max(self.ally.radius, self.enemy.radius))
        rank = jnp.where(noticed, jnp.where(distance > far, FAR_AWAY, distance), jnp.inf)
        nearest = _first_of(noticed & (rank == rank.min(0)))
        pursued = held & (able & (distance < self.enemy.pursuit)).any(1, keepdims=True)
        otherwise = jnp.where(pursued.any(0), target, NOBODY) if self.enemy.pursuit else NOBODY
        return jnp.where(kept, target, jnp.where(nearest == a, otherwise, nearest))

    def goals(self, at: Array, apart: Array, aim: Array, after: Array, moving: Array, to: Array, march: float) -> Array:
        """Where units want to go, relative to where they are, along one axis: [N, B]."""
        a = self.map.allies
        to_target = jnp.where(aim, apart, 0.0).sum(1)
        allies = jnp.where(aim.any(1), to_target, jnp.where(moving, to - at[:a], 0.0))
        to_ally = jnp.where(after, -apart, 0.0).sum(0)
        enemies = jnp.where(after.any(0), to_ally, march - at[a:])
        return jnp.concatenate([allies, enemies])

    def walk_round(self, units: Units, vx: Array, vy: Array, pursuing: Array, standing: Array) -> tuple[Array, Array]:
        """Wanted velocities [N, B]. Those pursuing [N, B] with others standing [N, B] right in front of them turn by a
        right angle, away from these; if they are straight ahead, even numbers turn to the left, odd to the right."""
        speed, separation = self.each("speed"), self.each("separation")
        ahead_x, ahead_y = (vx / speed)[:, None], (vy / speed)[:, None]
        px, py = units.x - units.x[:, None], units.y - units.y[:, None]  # [N, N, B]: the second as seen from the first
        touching = separation[:, None] + separation
        along, left = px * ahead_x + py * ahead_y, py * ahead_x - px * ahead_y
        close = px * px + py * py < (touching + IN_FRONT) ** 2
        in_the_way = standing & close & (along > 0) & (jnp.abs(left) < touching)
        lean = jnp.where(in_the_way, left, 0.0).sum(1)
        even = np.where(np.arange(len(units.x)) % 2 == 0, 1.0, -1.0)[:, None]
        side = jnp.where(jnp.abs(lean) > 1e-3, -jnp.sign(lean), even)  # 1: to the left
        turned = pursuing & in_the_way.any(1)
        return jnp.where(turned, -side * vy, vx), jnp.where(turned, side * vx, vy)

    def move(self, units: Units, vx: Array, vy: Array, moving: Array, alive: Array) -> tuple[Array, Array]:
        """New positions for wanted velocities [N, B]. Nobody runs into anybody; who stands is not pushed."""
        x, y, speed, crowding = units.x, units.y, self.each("speed"), self.rules.crowding
        px, py = x - x[:, None], y - y[:, None]  # [N, N, B]: the second unit as seen from the first
        distance = jnp.sqrt(jnp.maximum(px * px + py * py, 1e-12))
        separation = self.each("separation")
        touching = separation[:, None] + separation
        pairs = alive[:, None] & alive & ~np.eye(len(x), dtype=bool)[..., None]
        if not crowding.foresight:
            pairs &= distance <= separation.max() + separation
        # Two that both move, or both stand, share what has to be taken back.
        stander = jnp.where(moving, 0.0, 0.5 if crowding.standing_yield else 0.0)
        share = jnp.where(moving, jnp.where(moving[:, None], 0.5, 1.0), stander[:, None])
        # Directions and room carry the root of the share, so that a sweep need not read it: less memory, more speed.
        root = jnp.sqrt(crowding.firmness * jnp.where(pairs, share, 0.0))
        nx, ny, room = root * px / distance, root * py / distance, root * (distance - touching)

        def sweep(vx: Array, vy: Array) -> tuple[Array, Array]:
            def away_from(k: Array, changed: tuple[Array, Array]) -> tuple[Array, Array]:
                """What all units take back on account of unit k."""
                excess = jnp.maximum(-room[k] - nx[k] * (vx - vx[k]) - ny[k] * (vy - vy[k]), 0.0)
                return changed[0] + excess * nx[k], changed[1] + excess * ny[k]

            # A loop over units: as one sum over [N, N, B], it would take twice as long.
            vx, vy = jax.lax.fori_loop(0, len(x), away_from, (vx, vy))
            slower = jnp.minimum(1.0, speed / jnp.maximum(jnp.sqrt(vx * vx + vy * vy), 1e-9))
            return vx * slower, vy * slower

        for _ in range(crowding.sweeps):
            vx, vy = sweep(vx, vy)
        left, bottom, right, top = self.bounds
        ticks = self.rules.wall_ticks
        vx = jnp.clip(vx, (left - x) / ticks, (right - x) / ticks)
        vy = jnp.clip(vy, (bottom - y) / ticks, (top - y) / ticks)
        if crowding.closest:
            limit = jnp.where(pairs, jnp.minimum(crowding.closest * touching, distance), 0.0) ** 2
            stays = self.too_close(x, y, vx, vy, limit)
            vx, vy = jnp.where(stays, 0.0, vx), jnp.where(stays, 0.0, vy)
        return x + vx, y + vy

    def too_close(self, x: Array, y: Array, vx: Array, vy: Array, limit: Array) -> Array:
        """Who has to stay so that the square of no distance falls below its limit [N, N, B]: [N, B] bool."""

        def stay(stays: Array) -> Array:
            to_x, to_y = x + jnp.where(stays, 0.0, vx), y + jnp.where(stays, 0.0, vy)

            def look(k: Array, found: Array) -> Array:
                dx, dy = to_x - to_x[k], to_y - to_y[k]
                return found | (dx * dx + dy * dy < limit[k])

            return jax.lax.fori_loop(0, len(x), look, stays)

        return _settled(stay, jnp.zeros(x.shape, bool))

    def fight(self, units: Units, aim: Array, after: Array, shooting: Array, chance: Chance) -> tuple[Units, Array]:
        """Ready weapons fire, one unit after the other in random order: who is killed before its turn does not fire.

        All at once: assume who fires, see who is thereby kept from it, and repeat until nothing changes. Whether a unit
        fires depends only on units that act before it, so the answer is unique, and that of going through them in turn.
        """
        a = self.map.allies
        allies, enemies = slice(None, a), slice(a, None)
        cooldown = jnp.maximum(units.cooldown - 1.0, 0.0)
        ready = shooting & (cooldown == 0.0)
        ally_first = chance.order[allies, None] <= chance.order[None, enemies]  # [A, E, B]

        def volley(us: slice, them: slice, shooter: Unit, victim: Unit, at: Array, first: Array) -> Volley:
            queue = _queue(chance.order[us], at) if self.rules.spares_corpses else jnp.zeros((0,))
            return Volley(shooter, victim, at, first, queue, units.health[them], units.shield[them], units.delay[them])

        ours = volley(allies, enemies, self.ally, self.enemy, aim, ally_first)
        theirs = volley(enemies, allies, self.enemy, self.ally, after.swapaxes(0, 1), ~ally_first.swapaxes(0, 1))

        def who_fires(fires: Array) -> Array:
            can = jnp.concatenate([theirs.survivors(fires[enemies]), ours.survivors(fires[allies])])
            if self.rules.spares_corpses:
                can &= jnp.concatenate([ours.worthwhile(fires[allies]), theirs.worthwhile(fires[enemies])])
            return ready & can

        fires = _settled(who_fires, ready)
        if self.rules.aim_ticks:
            cooldown = jnp.where(shooting, cooldown, jnp.maximum(cooldown, self.rules.aim_ticks + 1.0))

        health_e, shield_e, delay_e, mended = ours.strike(fires[allies])
        health_a, shield_a, delay_a, _ = theirs.strike(fires[enemies])
        return units._replace(
            health=jnp.concatenate([health_a, health_e]),
            shield=jnp.concatenate([shield_a, shield_e]),
            delay=jnp.concatenate([delay_a, delay_e]),
            cooldown=jnp.where(fires, self.each("period") + chance.jitter, cooldown),
        ), mended
