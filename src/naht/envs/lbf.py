"""Level-based foraging: players on a grid take food whose level their levels together reach.

Rules, observations and spawning are those of lbforaging, which the tests play step by step beside this file; where it
differs: docs/lbf.md. There is no grid in the state but where things are, so that a step compares positions and looks
nothing up. All functions that do the work have a batch of worlds B as their last axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from naht.config import NotNegative, Range, setting
from naht.envs.base import Array, EnvSpec, Horizon, TeamSize, TimeStep, worlds_last
from naht.errors import require

NONE, NORTH, SOUTH, WEST, EAST, LOAD = range(6)
NUM_ACTIONS = 6
MOVES = np.array([[0, -1, 1, 0, 0, 0], [0, 0, 0, -1, 1, 0]])
"""[2, A]: how each action changes row and column."""
APART = 3
"""Steps between two foods, at least: nobody is ever beside two of them."""
AT_A_FOOD = 4
"""Players that can stand beside a food."""
LOWEST = 3
"""Unless `max_food_level` is set, no food is heavier than this many players of the lowest levels together."""
EMPTY = np.array([-1, -1, 0])[:, None]
"""What an observation says of somebody or something that is not seen."""

Level = Annotated[int, Range(1, 1000)]
Side = Annotated[int, Range(3, 50)]


class LbfState(NamedTuple):
    """One world, or with worlds on the last axis many. Places are row and column, counted from the upper left."""

    player: Array  # [2, M] int32
    player_level: Array  # [M] int32
    food: Array  # [2, F] int32, row by row
    food_level: Array  # [F] int32, 0: taken, or there was no room for it
    spawned: Array  # [] int32, the sum of food levels at the start
    time: Array  # [] int32, steps taken


@setting
@dataclass(frozen=True)
class Lbf:
    """Players walk on a grid and load food beside them, which works if the levels of those who load reach its level.

    Actions: none, north, south, west, east, load. Walking off the field or onto food, and loading where there is none,
    are not available and do nothing; of several who walk to the same cell, all stay. Observation, per food and then
    per player (itself first): row, column and level, -1, -1, 0 for what it does not see; places are counted from the
    upper left corner of what it sees. Global state: the same of everything, as shares, and the time. The episode
    terminates with the last food and is truncated after `horizon` steps. The metric `collected` is the share of food
    levels that were collected, `cleared` is 1 if nothing is left.
    """

    num_agents: TeamSize = 3
    """Players M."""
    foods: Annotated[int, Range(1, 1000)] = 3
    """Foods F. In a crowded field there is not always room for the last ones."""
    rows: Side = 8
    """Rows of the field."""
    cols: Side | None = None
    """Columns of the field; None: as many as rows."""
    sight: Annotated[int, Range(1, 1000)] | None = None
    """How many cells away, in each direction, things are seen; None: everywhere."""
    min_player_level: Level = 1
    """Levels of players are drawn from here..."""
    max_player_level: Level = 2
    """...to here."""
    min_food_level: Level = 1
    """Levels of food are drawn from here..."""
    max_food_level: Level | None = None
    """...to here; None: to the sum of the three lowest levels of players."""
    coop: bool = False
    """All food has the highest level: by default, three players of the lowest levels are needed (or all of two)."""
    normalise: bool = True
    """A food pays its share of all levels, so that all of it pays 1. Otherwise it pays its level times the levels of
    those who load it."""
    penalty: NotNegative = 0.0
    """What every player pays that loads in vain."""
    horizon: Horizon = 50
    """Steps per episode."""

    def __post_init__(self) -> None:
        low, high, least, most = self.min_player_level, self.max_player_level, self.min_food_level, self.max_food_level
        require(low <= high, f"min_player_level is {low}: it must be at most max_player_level, which is {high}")
        # Whatever levels the players have, some level of food is allowed; and some players could lift the heaviest.
        limit = min(LOWEST, self.num_agents) * low if most is None else most
        require(least <= limit, f"min_food_level is {least}: it must be at most {limit}, the lowest max_food_level")
        limit = min(AT_A_FOOD, self.num_agents) * high
        require((most or 0) <= limit, f"max_food_level is {most}: those beside a food can't lift more than {limit}")
        inner, size = (self.rows - 2) * (self.width - 2), f"a field of {self.rows} x {self.width}"
        require(self.num_agents < inner, f"num_agents is {self.num_agents}: {size} takes at most {inner - 1}")
        require(self.foods <= self.room, f"foods is {self.foods}: {size} takes at most {self.room}")

    @property
    def width(self) -> int:
        """Columns."""
        return self.rows if self.cols is None else self.cols

    @property
    def room(self) -> int:
        """How many foods fit in: off the edges and `APART`, in the densest regular pattern."""
        row, col = np.indices((self.rows - 2, self.width - 2))
        return max(int(np.bincount((row + slope * col).ravel() % 5).max()) for slope in (2, 3))

    @property
    def reach(self) -> int:
        """How far players see."""
        return max(self.rows, self.width) if self.sight is None else self.sight

    @cached_property
    def spec(self) -> EnvSpec:
        seen = 3 * (self.foods + self.num_agents)
        return EnvSpec("lbf", self.num_agents, seen, seen + 1, NUM_ACTIONS, self.horizon)

    def reset(self, key: Array) -> tuple[LbfState, TimeStep]:
        words = jax.random.bits(key, (self.rows * self.width + self.num_agents + self.foods,))
        return worlds_last(self.start)(words)

    def step(self, key: Array, state: LbfState, actions: Array) -> tuple[LbfState, TimeStep]:
        del key
        return worlds_last(self.play)(state, actions)

    def start(self, words: Array) -> tuple[LbfState, TimeStep]:
        """B first states, from all that is random in them: words [cells + M + F, B] uint32."""
        cells, m = self.rows * self.width, self.num_agents
        player, food, there = self.scatter(words[:cells])
        share = (words[cells:] >> 8).astype(jnp.float32) / 2**24
        level = _between(self.min_player_level, self.max_player_level, share[:m])
        if self.max_food_level is None:
            heaviest = jnp.sort(level, axis=0)[:LOWEST].sum(0)
        else:
            heaviest = jnp.full(words.shape[1], self.max_food_level, jnp.int32)
        food_level = jnp.where(there, _between(heaviest if self.coop else self.min_food_level, heaviest, share[m:]), 0)
        zero = jnp.zeros(words.shape[1], jnp.int32)
        state = LbfState(player, level, food, food_level, food_level.sum(0), zero)
        return state, self.view(state)

    def scatter(self, words: Array) -> tuple[Array, Array, Array]:
        """Where everybody and everything is: words [cells, B] -> players [2, M, B], foods [2, F, B] row by row, and
        whether there was room for each [F, B].

        Cells are gone through in random order: the first M are the players', then every inner one becomes food that is
        no player's and far enough from other food. That is the distribution of drawing cells until one fits.
        """
        cells = words.shape[0]
        row, col = (x.reshape(-1, 1).astype(np.int32) for x in np.indices((self.rows, self.width)))
        inner = (row > 0) & (row < self.rows - 1) & (col > 0) & (col < self.width - 1)
        # The lower bits of a cell's word are its number, so that no two are equal and the highest says whose it is.
        mask = np.uint32(2 ** cells.bit_length() - 1)
        lots = (words & ~mask) | np.arange(1, cells + 1, dtype=np.uint32)[:, None]

        def draw(lots: Array, reach: int) -> tuple[Array, Array]:
            """The next cell [B], and the lots without those of cells up to `reach` steps from it."""
            cell = (lots.max(0) & mask).astype(jnp.int32) - 1  # -1 if none is left
            near = abs(row - cell // self.width) + abs(col - cell % self.width) <= reach
            return jnp.where(near, np.uint32(0), lots), cell

        lots, player = jax.lax.scan(lambda lots, _: draw(lots, 0), lots, None, self.num_agents)
        _, food = jax.lax.scan(lambda lots, _: draw(lots, APART - 1), jnp.where(inner, lots, 0), None, self.foods)
        food = jnp.sort(jnp.where(food < 0, cells, food), axis=0)
        places = [jnp.stack([cell // self.width, cell % self.width]) for cell in (player, food)]
        return places[0], places[1], food < cells

    def play(self, state: LbfState, actions: Array) -> tuple[LbfState, TimeStep]:
        """A step of B worlds: actions [M, B]."""
        player, level, food, food_level, spawned, time = state
        there = food_level > 0
        rows, cols = (_one(actions == on) - _one(actions == back) for on, back in ((SOUTH, NORTH), (EAST, WEST)))
        aim = player + jnp.stack([rows, cols])  # [2, M, B]
        on_food = ((aim[:, :, None] == food[:, None]).all(0) & there).any(1)
        aim = jnp.where(self.outside(aim) | on_food, player, aim)
        alone = (aim[:, :, None] == aim[:, None]).all(0).sum(1) == 1
        player = jnp.where(alone, aim, player)

        beside = (abs(player[:, :, None] - food[:, None]).sum(0) == 1) & there  # [M, F, B]
        loads = beside & (actions == LOAD)[:, None]
        loaders, strength = loads.sum(0), jnp.where(loads, level[:, None], 0).sum(0)  # [F, B]
        taken = (loaders > 0) & (strength >= food_level)
        worth = food_level / spawned if self.normalise else (food_level * strength).astype(jnp.float32)
        in_vain = jnp.where(taken, 0, loaders).sum(0)
        reward = jnp.where(taken, worth, 0.0).sum(0) - self.penalty * in_vain

        state = LbfState(player, level, food, jnp.where(taken, 0, food_level), spawned, time + 1)
        cleared = ~(state.food_level > 0).any(0)
        over = (state.time >= self.horizon) & ~cleared
        return state, self.view(state)._replace(reward=reward, terminated=cleared, truncated=over)

    def outside(self, place: Array) -> Array:
        """Whether places [2, ...] lie beyond the field: [...]."""
        row, col = place
        return (row < 0) | (row >= self.rows) | (col < 0) | (col >= self.width)

    def masks(self, state: LbfState) -> Array:
        """Allowed actions [M, A, B]. That somebody stands in a cell forbids nothing: it may be left in that step."""
        player, there = state.player[:, :, None], state.food_level > 0
        ahead = player + MOVES[:, None, :, None]  # [2, M, A, B]
        food = ((ahead[:, :, :, None] == state.food[:, None, None]).all(0) & there).any(2)
        loads = food[:, NORTH:LOAD].any(1, keepdims=True)
        return jnp.concatenate([~(food | self.outside(ahead))[:, :LOAD], loads], axis=1)

    def view(self, state: LbfState) -> TimeStep:
        """What everybody sees in B worlds; no reward yet."""
        player, m, batch = state.player, self.num_agents, state.time.shape[0]
        corner = jnp.maximum(player - self.reach, 0)[:, :, None]  # [2, M, 1, B], of what each player sees
        there = state.food_level > 0
        food_seen = there & (abs(state.food[:, None] - player[:, :, None]) <= self.reach).all(0)
        order = np.array([[i, *(j for j in range(m) if j != i)] for i in range(m)])  # itself first
        at = player[:, order] - corner
        player_seen = ((at >= 0) & (at <= 2 * self.reach)).all(0)
        obs = jnp.concatenate(
            [
                _listed(food_seen, state.food[:, None] - corner, state.food_level[None]),
                _listed(player_seen, at, state.player_level[order]),
            ],
            axis=1,
        )
        left = state.food_level.sum(0)
        no = jnp.zeros(batch, bool)
        return TimeStep(
            obs=obs.reshape(m, -1, batch).astype(jnp.float32),
            global_state=self.global_state(state),
            avail=self.masks(state),
            alive=jnp.ones((m, batch), bool),
            reward=jnp.zeros(batch),
            terminated=no,
            truncated=no,
            metrics={"collected": 1 - left / state.spawned, "cleared": (left == 0).astype(jnp.float32)},
        )

    def global_state(self, state: LbfState) -> Array:
        """All players and foods, as parts of the field and of the highest level, and of the time: [S, B]. Food that
        is gone is zeros."""
        field = np.array([self.rows, self.width])[:, None, None] - 1
        heaviest = self.max_food_level or min(LOWEST, self.num_agents) * self.max_player_level
        food = jnp.where(state.food_level > 0, state.food, 0)
        parts = [
            *(state.player / field, state.player_level[None] / self.max_player_level),
            *(food / field, state.food_level[None] / heaviest),
        ]
        return jnp.concatenate([*(part.reshape(-1, part.shape[-1]) for part in parts), state.time[None] / self.horizon])


def _one(condition: Array) -> Array:
    return condition.astype(jnp.int32)


def _between(low: Array | int, high: Array | int, share: Array) -> Array:
    """A whole number from low to high, of which each is as likely, from a share [..., B] of 1."""
    return low + jnp.floor(share * (high - low + 1)).astype(jnp.int32)


def _listed(seen: Array, place: Array, level: Array) -> Array:
    """Those of K things that each player sees, in their order: seen [M, K, B], place [2, M, K, B], level [1 or M, K, B]
    -> [M, K, 3, B], `EMPTY` at the end."""
    kinds = seen.shape[1]
    slot = (seen[:, None] & np.tri(kinds, k=-1, dtype=bool)[..., None]).sum(2)  # how many seen things come before
    belongs = (slot[:, None] == np.arange(kinds)[:, None, None]) & seen[:, None]  # [M, slots, K, B]
    thing = jnp.stack([*place, jnp.broadcast_to(level, seen.shape)], axis=2) - EMPTY  # [M, K, 3, B]
    return jnp.where(belongs[:, :, :, None], thing[:, None], 0).sum(2) + EMPTY
