"""SMAC's interface to a battle: actions and masks, observations, global state, reward and the end of an episode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from naht.config import NotNegative, setting
from naht.envs.base import Array, EnvSpec, TimeStep, worlds_last
from naht.envs.smac.battle import Battle, Chance, Orders, Units
from naht.envs.smac.maps import CENTRE, MAPS, SIZE, Map
from naht.envs.smac.rules import (
    ATTACK_RANGE,
    KILL_VALUE,
    LARGEST_RETURN,
    MOVE_AMOUNT,
    RULES,
    SIGHT,
    TICKS_PER_STEP,
    WIN_VALUE,
    Rules,
)
from naht.errors import unknown

NO_OP, STOP, FIRST_MOVE, FIRST_ATTACK = 0, 1, 2, 6
DIRECTIONS = np.array([[0, 0, 1, -1], [1, -1, 0, 0]], np.float32)
"""[2, 4]: north, south, east, west."""


class SmacState(NamedTuple):
    """One world, or with worlds on the last axis many."""

    units: Units
    last_action: Array  # [A] int32, -1 before the first step
    time: Array  # [] int32, steps taken


@setting
@dataclass(frozen=True)
class Smac:
    """A SMAC map by SMAC's rules, simulated: StarCraft II itself is not involved.

    Every agent commands one unit against enemies that the simulator moves. Observations, global state, actions, masks,
    reward and limits are those of SMAC. The metric `battle_won` is 1 if the team has won; its mean is the win rate.
    """

    map: Annotated[str, tyro.conf.Suppress] = "5v6"
    """Name of the map."""
    rules: Literal["sc2", "smaclite"] = "sc2"
    """Constants: 'sc2' are those of the game, 'smaclite' those of SMAClite, for comparison with it."""
    scan_from: Literal["edge", "centre"] | None = None
    """Where the range begins in which enemies notice agents; default: as the rules have it (sc2: edge)."""
    help_radius: NotNegative | None = None
    """Enemies this near to one that is shot at turn on the shooter, 0: none; default: as the rules (sc2: 4)."""
    pursuit: NotNegative | None = None
    """Enemies go on after an ally that has got away from them while it is this near to one of them, 0: they give up and
    march on; default: as the rules (sc2: 21 for zealots, 0 for marines)."""
    walk_round: bool = False
    """Units on their way to a target go round those that stand in the way, rather than wait."""
    range_slop: NotNegative = 0.0
    """An enemy that has fired hits its target until that is this much beyond the range of its weapon."""
    aim_ticks: NotNegative = 0.0
    """Game loops that a unit that was not shooting stands before it fires; a step has 8."""
    recovery_pays: bool = True
    """Enemies' shields that recover pay like damage, as in SMAC; else a step in which they gain pays nothing."""
    state_last_action: bool = False
    """Put everybody's last action into the global state, as SMAC does by default and the paper does not."""

    def __post_init__(self) -> None:
        for name, choices in (("map", MAPS), ("rules", RULES)):
            if getattr(self, name) not in choices:
                raise unknown(name, getattr(self, name), choices)

    @property
    def layout(self) -> Map:
        return MAPS[self.map]

    @property
    def _rules(self) -> Rules:
        rules, enemy = RULES[self.rules], self.layout.enemy
        names = ("scan_from", "help_radius", "walk_round", "range_slop", "aim_ticks")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.pursuit is not None:
            own["units"] = rules.units | {enemy: replace(rules.units[enemy], pursuit=self.pursuit)}
        return replace(rules, **{name: value for name, value in own.items() if value is not None})

    @cached_property
    def battle(self) -> Battle:
        return Battle(self.layout, self._rules)

    @cached_property
    def spec(self) -> EnvSpec:
        a, e = self.layout.allies, self.layout.enemies
        ally, enemy = (int(unit.shield > 0) for unit in (self.battle.ally, self.battle.enemy))
        actions = FIRST_ATTACK + e
        return EnvSpec(
            self.map,
            num_agents=a,
            obs_size=4 + e * (5 + enemy) + (a - 1) * (5 + ally) + 1 + ally,
            state_size=a * (4 + ally) + e * (3 + enemy) + self.state_last_action * a * actions,
            num_actions=actions,
            horizon=self.layout.limit,
        )

    @cached_property
    def reward_scale(self) -> float:
        """What raw rewards are divided by, so that the largest return is 20."""
        enemy = self.battle.enemy
        worth = self.layout.enemies * (KILL_VALUE + enemy.health + enemy.shield) + WIN_VALUE
        return worth / LARGEST_RETURN

    @partial(jax.jit, static_argnums=0)  # called as it is, it would compile every operation by itself
    def reset(self, key: Array) -> tuple[SmacState, TimeStep]:
        """Always the same: units have fixed places."""
        del key
        a = self.layout.allies
        state = SmacState(self.battle.start(), jnp.full((a, 1), -1, jnp.int32), jnp.zeros((1,), jnp.int32))
        return jax.tree.map(lambda leaf: leaf[..., 0], (state, self.view(state)))

    @partial(jax.jit, static_argnums=0)
    def step(self, key: Array, state: SmacState, actions: Array) -> tuple[SmacState, TimeStep]:
        bits = jax.random.bits(key, (TICKS_PER_STEP, self.layout.allies + self.layout.enemies))
        return worlds_last(self.play)(bits, state, actions)

    def play(self, bits: Array, state: SmacState, actions: Array) -> tuple[SmacState, TimeStep]:
        """A step of B worlds. bits [ticks, N, B] uint32 is all that is random, actions [A, B]."""
        before = state.units
        actions = self.allowed(before, actions)
        orders = self.orders(before, actions)
        low, high = self._rules.jitter

        def tick(units: Units, word: Array) -> tuple[Units, Array]:
            # The upper half of a word decides who acts first, the lower half how long a weapon takes.
            fraction = (word & 0xFFFF).astype(jnp.float32) / 2**16
            chance = Chance((word >> 16).astype(jnp.int32), low + (high - low) * fraction)
            return self.battle.tick(units, orders, chance)

        after, mended = jax.lax.scan(tick, before, bits)
        state = SmacState(after, actions, state.time + 1)
        ts = self.view(state)
        over = state.time >= self.layout.limit
        won, lost = ts.metrics["battle_won"] > 0, ~ts.alive.any(0)
        ended = won | lost
        return state, ts._replace(
            reward=self.reward(before, after, mended.sum(0), won),
            terminated=ended,
            truncated=over & ~ended,
        )

    def allowed(self, units: Units, actions: Array) -> Array:
        """An action that is not available counts as stop, and as no-op for the dead. actions [A, B]."""
        chosen = np.arange(self.spec.num_actions)[:, None] == actions[:, None]  # [A, actions, B]
        fine = (chosen & self.masks(units)).any(1)
        dead = units.health[: self.layout.allies] <= 0
        return jnp.where(fine, actions, jnp.where(dead, NO_OP, STOP)).astype(jnp.int32)

    def orders(self, units: Units, actions: Array) -> Orders:
        """Actions [A, B] as orders for the ticks of a step."""
        a = self.layout.allies
        moves = (actions >= FIRST_MOVE) & (actions < FIRST_ATTACK)
        one_hot = actions[None] == np.arange(FIRST_MOVE, FIRST_ATTACK)[:, None, None]  # [4, A, B]
        to_x, to_y = (MOVE_AMOUNT * jnp.where(one_hot, d[:, None, None], 0.0).sum(0) for d in DIRECTIONS)
        aim = actions[:, None] == np.arange(FIRST_ATTACK, self.spec.num_actions)[:, None]
        return Orders(aim, moves, units.x[:a] + to_x, units.y[:a] + to_y)

    def masks(self, units: Units) -> Array:
        """Allowed actions [A, actions, B]."""
        a = self.layout.allies
        x, y, alive = units.x[:a], units.y[:a], units.health[:a] > 0
        left, bottom, right, top = self.layout.walkable(self._rules)
        ahead_x, ahead_y = x[:, None] + DIRECTIONS[0][:, None], y[:, None] + DIRECTIONS[1][:, None]
        # SMAC cuts off decimals, so a point just beyond the left or lower edge of the map still counts as on it.
        cell = jnp.trunc if self._rules.closed_map else jnp.floor
        cell_x, cell_y = cell(ahead_x), cell(ahead_y)
        moves = (cell_x >= left) & (cell_x < right) & (cell_y >= bottom) & (cell_y < top)
        dx, dy = units.x[None, a:] - x[:, None], units.y[None, a:] - y[:, None]
        attacks = (jnp.sqrt(dx * dx + dy * dy) <= ATTACK_RANGE) & (units.health[a:] > 0)
        stop = jnp.ones_like(alive)[:, None]
        living = jnp.concatenate([~stop, stop, moves, attacks], axis=1)
        return jnp.where(alive[:, None], living, np.arange(self.spec.num_actions)[:, None] == NO_OP)

    def reward(self, before: Units, after: Units, mended: Array, won: Array) -> Array:
        """[B], from the situations before and after a step."""
        a = self.layout.allies
        lost = (before.health + before.shield - after.health - after.shield)[a:].sum(0)
        killed = ((before.health > 0) & (after.health <= 0))[a:].sum(0)
        raw = lost + KILL_VALUE * killed
        if self._rules.reward == "net":
            raw = jnp.abs(raw) if self.recovery_pays else jnp.maximum(raw, 0.0)
        else:
            raw = raw + mended
        return (raw + WIN_VALUE * won) / self.reward_scale

    def view(self, state: SmacState) -> TimeStep:
        """What everybody sees in B worlds; no reward yet."""
        units, a, e = state.units, self.layout.allies, self.layout.enemies
        alive = units.health > 0
        masks = self.masks(units)
        health, shield = units.health / self.battle.each("health"), units.shield / self._shield_scale

        dx, dy = units.x - units.x[:a, None], units.y - units.y[:a, None]  # [A, N, B]
        distance = jnp.sqrt(dx * dx + dy * dy)
        seen = alive[:a, None] & alive & (distance < SIGHT)
        able = jnp.concatenate([jnp.ones((a, a, seen.shape[2]), bool), masks[:, FIRST_ATTACK:]], axis=1)
        features = [able.astype(jnp.float32), distance / SIGHT, dx / SIGHT, dy / SIGHT]
        features += [jnp.broadcast_to(f, seen.shape) for f in (health, shield)]
        table = jnp.where(seen[:, :, None], jnp.stack(features, axis=2), 0.0)  # [A, N, 6, B]
        # Of units without a shield, it is left out; an agent does not appear among its own allies.
        ally, enemy = (6 if unit.shield else 5 for unit in (self.battle.ally, self.battle.enemy))
        allies = _off_diagonal(table[:, :a, :ally])
        own = jnp.where(alive[:a, None], jnp.stack([health[:a], shield[:a]], axis=1)[:, : ally - 4], 0.0)
        batch = seen.shape[2]
        obs = jnp.concatenate(
            [
                jnp.where(alive[:a, None], masks[:, FIRST_MOVE:FIRST_ATTACK], False).astype(jnp.float32),
                table[:, a:, :enemy].reshape(a, e * enemy, batch),
                allies.reshape(a, (a - 1) * ally, batch),
                own,
            ],
            axis=1,
        )
        won = ~alive[a:].any(0) & alive[:a].any(0)
        if self._rules.reward == "damage":
            won = ~alive[a:].any(0)
        metrics = {
            "battle_won": won,
            "dead_allies": (~alive[:a]).sum(0),
            "dead_enemies": (~alive[a:]).sum(0),
        }
        no = jnp.zeros(batch, bool)
        return TimeStep(
            obs=obs,
            global_state=self.global_state(state),
            avail=masks,
            alive=alive[:a],
            reward=jnp.zeros(batch),
            terminated=no,
            truncated=no,
            metrics={name: value.astype(jnp.float32) for name, value in metrics.items()},
        )

    def sightings(self, obs: np.ndarray, seat: int) -> np.ndarray:
        """What the agent in a seat sees, [..., O], as a table of all units: [..., N, 6], allies first. Their features
        are those of the observation (may be attacked or is in sight, distance, x, y, health, shield), zeros for
        whom it does not see. Its own row is itself: 1, 0, 0, 0, health, shield."""
        a, e = self.layout.allies, self.layout.enemies
        ally, enemy = (6 if unit.shield else 5 for unit in (self.battle.ally, self.battle.enemy))

        def table(part: np.ndarray, rows: int) -> np.ndarray:
            part = part.reshape(*part.shape[:-1], rows, -1)
            return np.pad(part, [*[(0, 0)] * (part.ndim - 1), (0, 6 - part.shape[-1])])

        _, enemies, allies, own = np.split(obs, np.cumsum([4, e * enemy, (a - 1) * ally]), axis=-1)
        here = np.broadcast_to(np.array([1.0, 0.0, 0.0, 0.0], obs.dtype), (*own.shape[:-1], 4))
        itself = table(np.concatenate([here, own], axis=-1), 1)
        before, after = np.split(table(allies, a - 1), [seat], axis=-2)
        return np.concatenate([before, itself, after, table(enemies, e)], axis=-2)

    @cached_property
    def _shield_scale(self) -> np.ndarray:
        """[N, 1], without zeros."""
        return np.maximum(self.battle.each("shield"), 1.0)

    def global_state(self, state: SmacState) -> Array:
        """Everything about all units, [S, B]; zeros for the dead."""
        units, a = state.units, self.layout.allies
        health, shield = units.health / self.battle.each("health"), units.shield / self._shield_scale
        cooldown = units.cooldown / self.battle.each("cooldown_scale")
        features = [health, cooldown, (units.x - CENTRE) / SIZE, (units.y - CENTRE) / SIZE, shield]
        table = jnp.where((units.health > 0)[:, None], jnp.stack(features, axis=1), 0.0)  # [N, 5, B]
        ally, enemy = (5 if unit.shield else 4 for unit in (self.battle.ally, self.battle.enemy))
        batch = table.shape[2]
        # Enemies' cooldowns are not shown.
        parts = [table[:a, :ally], jnp.delete(table[a:], 1, axis=1)[:, : enemy - 1]]
        if self.state_last_action:
            parts.append(state.last_action[:, None] == np.arange(self.spec.num_actions)[:, None])
        return jnp.concatenate([part.reshape(-1, batch).astype(jnp.float32) for part in parts])


def _off_diagonal(table: Array) -> Array:
    """A square table without its diagonal: [K, K, ...] -> [K, K - 1, ...]."""
    k, rest = table.shape[0], table.shape[2:]
    # The entries after the first are blocks of K off the diagonal, each followed by one that is on it.
    blocks = table.reshape(k * k, *rest)[1:].reshape(k - 1, k + 1, *rest)
    return blocks[:, :-1].reshape(k, k - 1, *rest)
