"""Scripted teammates: policies without parameters.

The bots of the bit game: action 1 is "say 1"; they read nothing but their seat and the clock, so they play any team
size. The predators of predator-prey: they read their own observation and their seat, and have no memory. The randomness
of a bot is its policy: it stays when a team plays greedily. The soldiers of the SMAC maps and the foragers of
level-based foraging: they too read what they see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from naht.agents.policy import Percept, Policy, choose, masked_log_probs, pick
from naht.agents.python import Function, names_file, policy_in_file, python_policy
from naht.config import Count, NotNegative, Share, setting
from naht.envs.base import Array, EnvSpec, PyTree
from naht.envs.lbf import EAST, LOAD, MOVES, NORTH, SOUTH, WEST
from naht.envs.predator_prey import DIRECTIONS, DT
from naht.envs.smac.maps import MAPS
from naht.envs.smac.rules import RULES
from naht.envs.smac.task import DIRECTIONS as DIRECTIONS_ON_MAP
from naht.envs.smac.task import FIRST_ATTACK, FIRST_MOVE, NO_OP, STOP
from naht.errors import NahtError, require, unknown
from naht.plugins import Registry


def _say_one(probability: Array, percept: Percept, key: Array) -> tuple[Array, Array]:
    """Say 1 with a probability [...], respecting masks. Returns (actions, log-probabilities)."""
    p = jnp.broadcast_to(probability, percept.slot.shape)
    log_probs = masked_log_probs(jnp.stack([jnp.log1p(-p), jnp.log(p)], axis=-1), percept.avail[..., :2])
    action = jax.random.categorical(key, log_probs).astype(jnp.int32)
    return action, pick(log_probs, action)


@dataclass(frozen=True)
class _Clock(ABC):
    """A bot whose memory is the time since the episode began, [...] int32."""

    def init(self, key: Array) -> PyTree:
        del key
        return ()

    def initial_memory(self, batch: tuple[int, ...]) -> Array:
        return jnp.zeros(batch, jnp.int32)

    @abstractmethod
    def probability(self, time: Array, slot: Array) -> Array:
        """Chance of saying 1, from time [...] and seat [...]."""

    def act(
        self, params: PyTree, memory: Array, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, Array, Array]:
        del params, greedy
        action, log_prob = _say_one(self.probability(memory, percept.slot), percept, key)
        return action, memory + 1, log_prob


@setting
@dataclass(frozen=True)
class Bernoulli(_Clock):
    """Says 1 with a fixed probability."""

    p: Share = 1 / 3

    def probability(self, time: Array, slot: Array) -> Array:
        del time, slot
        return jnp.asarray(self.p, jnp.float32)


@setting
@dataclass(frozen=True)
class Static(_Clock):
    """The agent in the first seat says 1, all others 0."""

    def probability(self, time: Array, slot: Array) -> Array:
        del time
        return (slot == 0).astype(jnp.float32)


@setting
@dataclass(frozen=True)
class Explore(_Clock):
    """Says 1 with a probability that moves from `start` to `end`, linearly over the episode."""

    start: Share = 0.9
    end: Share = 0.1
    horizon: Count = 25

    def probability(self, time: Array, slot: Array) -> Array:
        del slot
        progress = jnp.clip(time / max(self.horizon - 1, 1), 0.0, 1.0)
        return self.start + (self.end - self.start) * progress


@setting
@dataclass(frozen=True)
class Turns(_Clock):
    """Seat t mod M says 1 at step t."""

    num_agents: Count = 3

    def probability(self, time: Array, slot: Array) -> Array:
        return (slot == time % self.num_agents).astype(jnp.float32)


class _Memoryless:
    """A bot that lives in the moment."""

    def init(self, key: Array) -> PyTree:
        del key
        return ()

    def initial_memory(self, batch: tuple[int, ...]) -> PyTree:
        del batch
        return ()


@setting
@dataclass(frozen=True)
class UniformRandom(_Memoryless):
    """Every allowed action is equally likely."""

    def act(
        self, params: PyTree, memory: PyTree, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, Array]:
        del params, greedy
        log_probs = masked_log_probs(jnp.zeros(percept.avail.shape), percept.avail)
        action, log_prob = choose(log_probs, key, greedy=False)
        return action, memory, log_prob


@dataclass(frozen=True)
class _Predator(_Memoryless, ABC):
    """A bot of predator-prey that accelerates along the larger component of where it wants to go."""

    @abstractmethod
    def aim(self, obs: Array, slot: Array) -> Array:
        """Where to go, relative to where it is. obs [..., O], seat [...] -> [..., 2]."""

    def act(
        self, params: PyTree, memory: PyTree, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, Array]:
        del params, key, greedy
        # How far each action's direction leads towards the aim; nothing to gain by moving means to stay (action 0).
        gain = self.aim(percept.obs, percept.slot) @ DIRECTIONS
        action = jnp.where(percept.avail, gain, -jnp.inf).argmax(-1).astype(jnp.int32)
        return action, memory, jnp.zeros(action.shape)


def _prey(obs: Array) -> Array:
    """The prey relative to the predator that sees obs [..., O] -> [..., 2]."""
    return obs[..., -4:-2]


def _length(vector: Array) -> Array:
    """[..., 2] -> [..., 1]."""
    return jnp.linalg.norm(vector, axis=-1, keepdims=True)


@setting
@dataclass(frozen=True)
class Still(_Predator):
    """Never accelerates."""

    def aim(self, obs: Array, slot: Array) -> Array:
        del slot
        return jnp.zeros_like(_prey(obs))


@setting
@dataclass(frozen=True)
class Chaser(_Predator):
    """Heads for where the prey is."""

    def aim(self, obs: Array, slot: Array) -> Array:
        del slot
        return _prey(obs)


@setting
@dataclass(frozen=True)
class Interceptor(_Predator):
    """Heads for where the prey will be if both keep their velocities."""

    steps: NotNegative = 5.0
    """How many steps it looks ahead."""

    def aim(self, obs: Array, slot: Array) -> Array:
        del slot
        drift = obs[..., -2:] - obs[..., :2]  # the prey's velocity as seen by a predator that moves itself
        return _prey(obs) + self.steps * DT * drift


@setting
@dataclass(frozen=True)
class Pincer(Interceptor):
    """Every seat has its own side of the prey: an interceptor that first goes round the prey and then closes in.

    The side of seat i is at the angle 2 pi i / M. A predator with an angle left to go aims beside the prey, at most 60
    degrees further round than it is (it would bump into the prey if it went straight through), and `radius` away from
    the prey; from 120 degrees on, the radius shrinks with the angle left, to 0 on its own side.
    """

    num_agents: Count = 3
    radius: NotNegative = 0.3

    def aim(self, obs: Array, slot: Array) -> Array:
        prey = _prey(obs)
        here = jnp.arctan2(-prey[..., 1], -prey[..., 0])  # this predator as seen from the prey
        left = 2 * jnp.pi * slot / self.num_agents - here
        left = (left + jnp.pi) % (2 * jnp.pi) - jnp.pi  # the shorter way round
        angle = here + jnp.clip(left, -jnp.pi / 3, jnp.pi / 3)
        radius = self.radius * jnp.minimum(1.0, abs(left) / (2 * jnp.pi / 3))
        beside = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1) * radius[..., None]
        return super().aim(obs, slot) + beside


@setting
@dataclass(frozen=True)
class Ambush(Interceptor):
    """Seat 0 drives the prey towards the others: all are interceptors, but the others aim at the prey's far side.

    That is the line from seat 0 through the prey, `ahead` beyond the prey, but never further than half a predator's own
    distance to it.
    """

    num_agents: Count = 3
    ahead: NotNegative = 0.5

    def aim(self, obs: Array, slot: Array) -> Array:
        prey = _prey(obs)
        # The other predators come before the prey, in the order of their seats: all but seat 0 see seat 0 first.
        driver = obs[..., -2 - 2 * self.num_agents :][..., :2]
        flight = (prey - driver) / jnp.maximum(_length(prey - driver), 1e-9)
        beyond = flight * jnp.minimum(self.ahead, 0.5 * _length(prey))
        return super().aim(obs, slot) + jnp.where((slot == 0)[..., None], 0.0, beyond)


@setting
@dataclass(frozen=True)
class Decoy(Pincer):
    """Pincers, but one of them leaves for good, outwards from the middle of the world."""

    leaver: int = 0
    """The seat of the one who leaves."""

    def __post_init__(self) -> None:
        require(
            self.leaver in range(self.num_agents),
            f"leaver is {self.leaver}: a team of {self.num_agents} has seats 0 to {self.num_agents - 1}",
        )

    def aim(self, obs: Array, slot: Array) -> Array:
        position = obs[..., 2:4]
        return jnp.where((slot == self.leaver)[..., None], position, super().aim(obs, slot))


@setting
@dataclass(frozen=True)
class Soldier(_Memoryless):
    """A unit on a SMAC map that attacks whenever it can and otherwise goes for the nearest enemy that it sees."""

    prefers: Literal["nearest", "weakest", "first"] = "nearest"
    """Whom it attacks: the nearest, the one with the least health and shield, or the one with the lowest number."""
    num_enemies: Count = 6
    shields: bool = False
    """Do the enemies have shields?"""

    def act(
        self, params: PyTree, memory: PyTree, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, Array]:
        del params, key, greedy
        width = 6 if self.shields else 5
        seen = percept.obs[..., 4 : 4 + width * self.num_enemies]
        seen = seen.reshape(*seen.shape[:-1], self.num_enemies, width)
        distance, towards, health = seen[..., 1], seen[..., 2:4], seen[..., 4:].sum(-1)
        dislike = {"nearest": distance, "weakest": health, "first": jnp.zeros_like(distance)}[self.prefers]
        attacks = percept.avail[..., FIRST_ATTACK:]
        attack = FIRST_ATTACK + jnp.where(attacks, dislike, jnp.inf).argmin(-1)
        # Towards the nearest one in sight along the axis that leads further; nobody in sight: stop.
        nearest = jnp.where(distance > 0, distance, jnp.inf).argmin(-1)
        gain = jnp.take_along_axis(towards, nearest[..., None, None], axis=-2)[..., 0, :] @ DIRECTIONS_ON_MAP
        gain = jnp.where(percept.avail[..., FIRST_MOVE:FIRST_ATTACK], gain, 0.0)
        walk = jnp.where(gain.max(-1) > 0, FIRST_MOVE + gain.argmax(-1), STOP)
        dead = percept.avail[..., NO_OP]
        action = jnp.where(dead, NO_OP, jnp.where(attacks.any(-1), attack, walk)).astype(jnp.int32)
        return action, memory, jnp.zeros(action.shape)


def _soldiers(name: str) -> dict[str, Bot]:
    """The bots of a SMAC map."""
    m = MAPS[name]
    shields = RULES["sc2"].units[m.enemy].shield > 0

    def soldier(prefers: Literal["nearest", "weakest", "first"]) -> Callable[..., Policy]:
        return lambda spec: Soldier(prefers, m.enemies, shields)  # noqa: ARG005

    return {
        "random": Bot("does anything allowed at random", lambda spec: UniformRandom()),  # noqa: ARG005
        "nearest": Bot("attacks the nearest enemy, or walks up to it", soldier("nearest")),
        "weakest": Bot("attacks the weakest enemy in range, or walks up to the nearest", soldier("weakest")),
        "first": Bot("attacks the enemy with the lowest number, or walks up to the nearest", soldier("first")),
    }


Food = Literal["nearest", "alone", "follow", "together", "first"]


@setting
@dataclass(frozen=True)
class Forager(_Memoryless):
    """A player of level-based foraging that goes to the food it prefers of those it sees, and loads.

    It plans its way round food and other players in the cells near it, as if they stayed, and of equally short ways
    takes any. Now and then it strays: whatever holds it up, another who wants the same cell or a dead end that is
    larger than its plans, does not do so for ever. While it sees no food it mostly walks straight on.
    """

    prefers: Food = "nearest"
    """Which food: the nearest; what it can lift alone, then what it is least too weak for; the nearest to its nearest
    teammate; the nearest to all players together; or the first row by row."""
    num_agents: Count = 3
    strays: Share = 0.1
    """How often it waits or takes any free step, as likely as each other, instead of the one it wants."""

    def act(
        self, params: PyTree, memory: PyTree, percept: Percept, key: Array, greedy: bool
    ) -> tuple[Array, PyTree, Array]:
        del params, greedy
        things = percept.obs.reshape(*percept.obs.shape[:-1], -1, 3)
        foods, players = things[..., : -self.num_agents, :], things[..., -self.num_agents :, :]
        here, others = players[..., 0, :2], players[..., 1:, :]
        target = self.target(foods, players)
        left = _steps_left(here, target, jnp.concatenate([foods, others], axis=-2))
        left = jnp.where(percept.avail[..., NORTH:LOAD], left, jnp.inf)  # [..., 4]
        free, last = left < jnp.inf, percept.last_action[..., None]
        straight = jnp.where(last == np.arange(NORTH, LOAD), 8.0, last != np.array([SOUTH, NORTH, EAST, WEST]))
        food = (foods[..., 2] > 0).any(-1, keepdims=True)
        wanted = free * jnp.where(food, left == left.min(-1, keepdims=True), straight)

        wait = jnp.ones_like(free[..., :1])
        load = food & (_steps(here, target) == 1)[..., None] & percept.avail[..., LOAD:]
        any_ = jnp.concatenate([wait, free, ~wait], axis=-1)
        best = jnp.concatenate([~wait, wanted, ~wait], axis=-1)
        best = jnp.where(load, np.eye(LOAD + 1)[LOAD], jnp.where(best.any(-1, keepdims=True), best, any_))
        strays = jnp.where(load, 0.0, self.strays)
        chances = (1 - strays) * best / best.sum(-1, keepdims=True) + strays * any_ / any_.sum(-1, keepdims=True)
        action, log_prob = choose(masked_log_probs(jnp.log(chances), percept.avail), key, greedy=False)
        return action, memory, log_prob

    def target(self, foods: Array, players: Array) -> Array:
        """Where the preferred food is, [..., 2]: of foods [..., F, 3], players [..., M, 3], itself first."""
        everybody, known = players[..., :2], players[..., 2] > 0
        far = _steps(foods[..., :, None, :2], everybody[..., None, :, :])  # [..., F, M]
        match self.prefers:
            case "nearest":
                dislike = far[..., 0]
            case "alone":
                too_weak = jnp.maximum(foods[..., 2] - players[..., :1, 2], 0)
                dislike = far[..., 0] + VERY_FAR * too_weak
            case "follow":
                away = _steps(everybody, everybody[..., :1, :]) + VERY_FAR * (np.arange(self.num_agents) == 0)
                leader = jnp.where(known, away, jnp.inf).argmin(-1)  # itself if it sees nobody else
                dislike = jnp.take_along_axis(far, leader[..., None, None], axis=-1)[..., 0]
            case "together":
                dislike = jnp.where(known[..., None, :], far, 0).sum(-1)
            case "first":
                dislike = jnp.broadcast_to(jnp.arange(foods.shape[-2]), foods.shape[:-1])
        chosen = jnp.where(foods[..., 2] > 0, dislike, jnp.inf).argmin(-1)
        return jnp.take_along_axis(foods[..., :2], chosen[..., None, None], axis=-2)[..., 0, :]


NEAR, VERY_FAR = 3, 1000
"""Cells in each direction within which a forager plans its way; steps, more than any field has."""


def _steps(a: Array, b: Array) -> Array:
    """From one cell to another: [..., 2] -> [...]."""
    return abs(a - b).sum(-1)


def _steps_left(here: Array, target: Array, things: Array) -> Array:
    """From each cell beside `here` [..., 2] to one beside the target, round things [..., K, 3] of a level above 0:
    north, south, west, east, [..., 4]; infinite for a cell that is taken.

    Ways are exact within `NEAR` cells around; from there on as if nothing was in the way.
    """
    offset = np.moveaxis(np.indices((2 * NEAR + 1, 2 * NEAR + 1)) - NEAR, 0, -1)  # [W, W, 2]
    cell = here[..., None, None, :] + offset
    same = _steps(cell[..., None, :], things[..., None, None, :, :2]) == 0
    taken = (same & (things[..., None, None, :, 2] > 0)).any(-1) | (cell < 0).any(-1)  # [..., W, W]
    far = _steps(cell, target[..., None, None, :])
    ends = (far == 1) | (abs(offset).max(-1) == NEAR)
    left = jnp.where(ends & ~taken, far, jnp.inf)
    for _ in range(3 * NEAR):
        around = jnp.pad(left, [(0, 0)] * (left.ndim - 2) + [(1, 1), (1, 1)], constant_values=jnp.inf)
        beside = [around[..., 1 + r : r + 2 * NEAR + 2, 1 + c : c + 2 * NEAR + 2] for r, c in MOVES.T[NORTH:LOAD]]
        left = jnp.where(taken, jnp.inf, jnp.minimum(left, 1 + jnp.stack(beside).min(0)))
    return jnp.stack([left[..., NEAR + r, NEAR + c] for r, c in MOVES.T[NORTH:LOAD]], axis=-1)


def _forager(prefers: Food) -> Callable[..., Policy]:
    return lambda spec: Forager(prefers, spec.num_agents)


@dataclass(frozen=True)
class Bot:
    """An entry in the list of scripted teammates."""

    description: str
    make: Callable[..., Policy]
    """(spec, *numbers) -> policy."""


BOTS: dict[str, dict[str, Bot]] = {
    "bit-game": {
        "bernoulli": Bot(
            "says 1 with probability 1/M (bernoulli:P for another)",
            lambda spec, p=None: Bernoulli(1 / spec.num_agents if p is None else p),
        ),
        "static": Bot("the agent in the first seat says 1, the others 0", lambda spec: Static()),  # noqa: ARG005
        "explore": Bot(
            "says 1 with a probability that falls over the episode (explore:START,END)",
            lambda spec, start=0.9, end=0.1: Explore(start, end, spec.horizon),
        ),
        "turns": Bot("seat t mod M says 1 at step t", lambda spec: Turns(spec.num_agents)),
    },
    "mpe-pp": {
        "random": Bot("moves at random", lambda spec: UniformRandom()),  # noqa: ARG005
        "still": Bot("never accelerates", lambda spec: Still()),  # noqa: ARG005
        "chaser": Bot("heads for the prey", lambda spec: Chaser()),  # noqa: ARG005
        "interceptor": Bot(
            "heads for where the prey will be in 5 steps (interceptor:STEPS for another)",
            lambda spec, steps=5.0: Interceptor(steps),  # noqa: ARG005
        ),
        "pincer": Bot(
            "every seat goes round to its own side of the prey, then closes in (pincer:RADIUS)",
            lambda spec, radius=0.3: Pincer(num_agents=spec.num_agents, radius=radius),
        ),
        "ambush": Bot(
            "seat 0 drives the prey towards the others (ambush:AHEAD for how far beyond it they wait)",
            lambda spec, ahead=0.5: Ambush(num_agents=spec.num_agents, ahead=ahead),
        ),
        "decoy": Bot(
            "pincers, one of whom leaves for good (decoy:SEAT for who; default: seat 0)",
            lambda spec, leaver=0: Decoy(num_agents=spec.num_agents, leaver=leaver),
        ),
    },
    **{name: _soldiers(name) for name in MAPS},
    "lbf": {
        "random": Bot("does anything allowed at random", lambda spec: UniformRandom()),  # noqa: ARG005
        "nearest": Bot("loads the nearest food", _forager("nearest")),
        "alone": Bot("loads what it can lift alone, else the food it is least too weak for", _forager("alone")),
        "follow": Bot("loads the food nearest to its nearest teammate", _forager("follow")),
        "together": Bot("loads the food nearest to all players together", _forager("together")),
        "first": Bot("loads the first food, row by row", _forager("first")),
    },
}
"""Scripted teammates by task and name."""


@dataclass(frozen=True)
class Teammate:
    """A teammate that does not come with us: a Python function, or a policy, for one task."""

    player: Function | Policy
    """A function takes a `naht.Situation` and returns an action, or an action and its memory."""
    task: str
    memory: int = 0
    """Numbers that a function remembers."""

    def bot(self, name: str) -> Bot:
        """As it is listed."""

        def make(spec: EnvSpec) -> Policy:
            if hasattr(self.player, "initial_memory"):
                return cast(Policy, self.player)
            return python_policy(name, self.player, spec, self.memory)

        return Bot((self.player.__doc__ or "added by the user").strip().splitlines()[0], make)


OFFERED = Registry("teammate", Teammate, "naht.teammates", {})
"""Those of installed packages."""


def register_teammate(name: str, player: Function | Policy, *, task: str, memory: int = 0) -> None:
    """Make a Python function, or a policy of your own, a teammate on a task, under a name.

    A function takes a `naht.Situation` and returns an action, or an action and its memory of `memory` numbers.
    """
    require(name not in bots_of(task), f"there is a teammate '{name}' for {task} already")
    require(not {":", "/"} & set(name), f"teammate '{name}': a name has no colon and no slash")
    BOTS.setdefault(task, {})[name] = Teammate(player, task, memory).bot(name)


def bots_of(task: str) -> dict[str, Bot]:
    """The scripted teammates of a task by name: ours, registered ones, those of installed packages."""
    offered = {name: teammate.bot(name) for name, teammate in OFFERED.items() if teammate.task == task}
    return offered | BOTS.get(task, {})


def make_bot(text: str, spec: EnvSpec) -> Policy:
    """A bot from its name and, after a colon, its numbers: 'bernoulli', 'bernoulli:0.5', 'explore:0.9,0.1'.

    Or a function in a file, which is run: 'bots.py:follow'.
    """
    if names_file(text):
        return policy_in_file(text, spec)
    name, _, numbers = text.partition(":")
    bots = bots_of(spec.name)
    if name not in bots:
        raise OFFERED.broken.get(name) or unknown(
            f"teammate for {spec.name}", name, [*bots, "a saved agent", "zoo", "FILE.py:FUNCTION"]
        )
    try:
        return bots[name].make(spec, *[float(n) if "." in n else int(n) for n in numbers.split(",") if n])
    except (TypeError, ValueError) as e:
        raise NahtError(f"teammate '{text}' does not fit: {name} {bots[name].description}") from e
