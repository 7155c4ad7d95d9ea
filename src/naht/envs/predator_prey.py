"""Predator-prey in a particle world: M predators, which are the team, must touch one faster prey together.

Written for speed on wide batches without giving up one world at a time: differences between entities, the forces that
act back on them and all observations are linear in the state, so each is one product with a small constant matrix. The
entries of these matrices are 0, 1 and -1, so that the results are those of plain additions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from naht.config import Range, setting
from naht.envs.base import MOST_AGENTS, Array, EnvSpec, Horizon, TeamSize, TimeStep, opening
from naht.envs.prey import SHIPPED, Prey, load_prey
from naht.errors import require

DT = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 0.001
PREDATOR_RADIUS, PREY_RADIUS, OBSTACLE_RADIUS = 0.075, 0.05, 0.2
PREDATOR_ACCELERATION, PREY_ACCELERATION = 3.0, 4.0
PREDATOR_SPEED, PREY_SPEED = 1.0, 1.3
TOUCH_DISTANCE = 1.8 * (PREDATOR_RADIUS + PREY_RADIUS)
DISTANCE_COST = 0.01
NUM_ACTIONS = 5
DIRECTIONS = np.array([[0, 1, -1, 0, 0], [0, 0, 0, 1, -1]], np.float32)
"""[2, A]: the force of each action before acceleration: none, +x, -x, +y, -y."""


class PredatorPreyState(NamedTuple):
    """Entities in order: predators, prey, obstacles. The first axis is x, y."""

    position: Array  # [2, M + 1 + obstacles]
    velocity: Array  # [2, M + 1]
    time: Array  # [] int32, steps taken
    catches: Array  # [] float32, steps of this episode in which at least two predators touched the prey


class Geometry(NamedTuple):
    """The constant matrices of a world."""

    difference: np.ndarray  # [E, P]: positions -> differences of the P pairs of which at least one can move
    reach: np.ndarray  # [P], the distance at which each pair touches
    act_back: np.ndarray  # [P, M + 1]: pair forces -> forces on the moving entities
    to_prey: np.ndarray  # [E, M]: positions -> predators as seen from the prey
    observation: np.ndarray  # [2 E + 2 (M + 1), M O]: state as a vector -> all predators' observations
    prey_observation: np.ndarray  # [2 E + 2 (M + 1), O - 2]
    acceleration: np.ndarray  # [M + 1]
    speed: np.ndarray  # [M + 1]


def observe(position: np.ndarray, velocity: np.ndarray, agent: int, num_obstacles: int) -> np.ndarray:
    """What an agent sees, as a plain function. position [2, E], velocity [2, M + 1]; agent M is the prey.

    Own velocity, own position, obstacles relative to it, the other agents relative to it; for predators the prey's
    velocity too.
    """
    agents, prey = velocity.shape[1], velocity.shape[1] - 1
    others = [agents + k for k in range(num_obstacles)] + [k for k in range(agents) if k != agent]
    parts = [velocity[:, agent], position[:, agent], *[position[:, k] - position[:, agent] for k in others]]
    return np.concatenate(parts if agent == prey else [*parts, velocity[:, prey]])


@lru_cache
def _geometry(num_predators: int, num_obstacles: int) -> Geometry:
    agents = num_predators + 1
    entities = agents + num_obstacles
    radius = [PREDATOR_RADIUS] * num_predators + [PREY_RADIUS] + [OBSTACLE_RADIUS] * num_obstacles
    pairs = [(i, j) for i, j in combinations(range(entities), 2) if i < agents]
    difference = np.zeros((entities, len(pairs)), np.float32)
    for p, (i, j) in enumerate(pairs):
        difference[i, p], difference[j, p] = 1, -1
    # A linear function is known by what it does to the unit vectors.
    units = np.eye(2 * (entities + agents), dtype=np.float32)
    worlds = [(u[: 2 * entities].reshape(2, entities), u[2 * entities :].reshape(2, agents)) for u in units]
    seen = [[observe(x, v, agent, num_obstacles) for agent in range(agents)] for x, v in worlds]
    to_prey = np.eye(entities, num_predators, dtype=np.float32)
    to_prey[num_predators] = -1
    return Geometry(
        difference=difference,
        reach=np.array([radius[i] + radius[j] for i, j in pairs], np.float32),
        act_back=np.ascontiguousarray(difference[:agents].T),
        to_prey=to_prey,
        observation=np.array([np.concatenate(row[:-1]) for row in seen]),
        prey_observation=np.array([row[-1] for row in seen]),
        acceleration=np.array([PREDATOR_ACCELERATION] * num_predators + [PREY_ACCELERATION], np.float32),
        speed=np.array([PREDATOR_SPEED] * num_predators + [PREY_SPEED], np.float32),
    )


@setting
@dataclass(frozen=True)
class PredatorPrey:
    """M predators chase one prey that a network moves; touching it pays when at least two do at once.

    Observation of a predator (16 numbers for M = 3): own velocity, own position, obstacles relative to it, the other
    predators and the prey relative to it, the prey's velocity. Global state: all predators' observations. Actions:
    none, +x, -x, +y, -y. All are always allowed, nobody dies, and the episode ends (truncated) after `horizon` steps.
    The metric `catches` counts the steps in which at least two predators touched the prey.
    """

    num_agents: TeamSize = 3
    """Predators M."""
    num_obstacles: Annotated[int, Range(0, MOST_AGENTS)] = 2
    """Fixed round obstacles."""
    horizon: Horizon = 100
    """Steps per episode."""
    reward: Literal["sum", "team"] = "sum"
    """'sum': +1 for every predator that touches the prey while at least two do. 'team': +1 once for such a step. Either
    way minus 0.01 times each predator's distance to the prey."""
    prey: Annotated[str, tyro.conf.arg(aliases=("--prey",))] = SHIPPED
    """Who flees: 'naht' (shipped with the package), or a file: our format, or the published ePyMARL network as .pt or
    .npz."""

    all_allowed = True

    def __post_init__(self) -> None:
        require(self.num_agents >= 2, f"num_agents is {self.num_agents}: a catch needs at least 2 predators")

    @cached_property
    def spec(self) -> EnvSpec:
        m = self.num_agents
        obs_size = 4 + 2 * self.num_obstacles + 2 * m + 2
        return EnvSpec("mpe-pp", m, obs_size, state_size=m * obs_size, num_actions=NUM_ACTIONS, horizon=self.horizon)

    @cached_property
    def geometry(self) -> Geometry:
        return _geometry(self.num_agents, self.num_obstacles)

    @cached_property
    def mover(self) -> Prey:
        """The prey, loaded when first needed."""
        return load_prey(self.prey, obs_size=self.geometry.prey_observation.shape[1])

    @property
    def fingerprint(self) -> str:
        """Changes whenever the prey's file does."""
        return self.mover.fingerprint

    def view(self, state: PredatorPreyState) -> TimeStep:
        """What everybody sees in this state; no reward yet."""
        obs = _as_vector(state) @ self.geometry.observation
        avail = jnp.ones((self.num_agents, NUM_ACTIONS), bool)
        return opening(obs.reshape(self.num_agents, -1), obs, avail, {"catches": state.catches})

    def prey_view(self, state: PredatorPreyState) -> Array:
        """What the prey sees: [14] for M = 3."""
        return _as_vector(state) @ self.geometry.prey_observation

    def reset(self, key: Array) -> tuple[PredatorPreyState, TimeStep]:
        k_agents, k_obstacles = jax.random.split(key)
        agents = jax.random.uniform(k_agents, (2, self.num_agents + 1), minval=-1.0, maxval=1.0)
        obstacles = jax.random.uniform(k_obstacles, (2, self.num_obstacles), minval=-0.9, maxval=0.9)
        position = jnp.concatenate([agents, obstacles], axis=1)
        state = PredatorPreyState(position, jnp.zeros_like(agents), jnp.zeros((), jnp.int32), jnp.zeros(()))
        return state, self.view(state)

    def step(self, key: Array, state: PredatorPreyState, actions: Array) -> tuple[PredatorPreyState, TimeStep]:
        del key
        prey_action = self.mover.act(self.prey_view(state))
        state, touching, distance = self.advance(state, jnp.append(actions, prey_action))
        caught = touching.sum() >= 2
        bonus = caught * (touching.sum() if self.reward == "sum" else 1.0)
        reward = bonus - DISTANCE_COST * distance.sum()
        return state, self.view(state)._replace(reward=reward, truncated=state.time >= self.horizon)

    def advance(self, state: PredatorPreyState, actions: Array) -> tuple[PredatorPreyState, Array, Array]:
        """Everybody moves; actions [M + 1], the prey's last. Returns (state, who touches the prey [M], distances)."""
        position, velocity = self.move(state.position, state.velocity, actions)
        to_prey = position @ self.geometry.to_prey
        distance = jnp.sqrt(to_prey[0] ** 2 + to_prey[1] ** 2)
        touching = distance < TOUCH_DISTANCE
        caught = touching.sum() >= 2
        return PredatorPreyState(position, velocity, state.time + 1, state.catches + caught), touching, distance

    def move(self, position: Array, velocity: Array, actions: Array) -> tuple[Array, Array]:
        """The physics of one step. position [2, E], velocity [2, M + 1], actions [M + 1] with the prey's last."""
        g = self.geometry
        right, left, up, down = (jnp.where(actions == a, g.acceleration, 0.0) for a in range(1, NUM_ACTIONS))
        push = jnp.stack([right - left, up - down])
        apart = position @ g.difference
        distance = jnp.maximum(jnp.sqrt(apart[0] ** 2 + apart[1] ** 2), 1e-9)
        penetration = CONTACT_MARGIN * jax.nn.softplus((g.reach - distance) / CONTACT_MARGIN)
        force = push + (apart * (CONTACT_FORCE * penetration / distance)) @ g.act_back
        velocity = velocity * (1 - DAMPING) + force * DT
        speed = jnp.sqrt(velocity[0] ** 2 + velocity[1] ** 2)
        velocity = velocity * jnp.minimum(1.0, g.speed / jnp.maximum(speed, 1e-9))
        agents = self.num_agents + 1
        moved = position[:, :agents] + velocity * DT
        return jnp.concatenate([moved, position[:, agents:]], axis=1), velocity


WALL, WALL_COST = 0.9, 0.25


@setting
@dataclass(frozen=True)
class Flight:
    """The other side of predator-prey, where a prey learns to flee: seats 0..M-1 are predators, the last is the prey.

    The reward is the prey's: minus the number of predators that touch it, minus a cost of leaving the square in which
    everybody starts (without it, the faster prey would simply run away). All observations have a predator's size; the
    prey's ends with two zeros. Otherwise as `PredatorPrey`.
    """

    num_predators: TeamSize = 3
    """Predators."""
    num_obstacles: Annotated[int, Range(0, MOST_AGENTS)] = 2
    """Fixed round obstacles."""
    horizon: Horizon = 100
    """Steps per episode."""

    @cached_property
    def chase(self) -> PredatorPrey:
        """The same world as the predators know it."""
        return PredatorPrey(self.num_predators, self.num_obstacles, self.horizon)

    @property
    def teammate_spec(self) -> EnvSpec:
        """The predators that may be met here were trained there."""
        return self.chase.spec

    @cached_property
    def spec(self) -> EnvSpec:
        return replace(self.chase.spec, name="mpe-prey", num_agents=self.num_predators + 1)

    def _view(self, state: PredatorPreyState) -> TimeStep:
        predators = self.chase.view(state)
        prey = jnp.append(self.chase.prey_view(state), jnp.zeros(2))
        avail = jnp.ones((self.num_predators + 1, NUM_ACTIONS), bool)
        return opening(jnp.vstack([predators.obs, prey]), predators.global_state, avail, predators.metrics)

    def reset(self, key: Array) -> tuple[PredatorPreyState, TimeStep]:
        state, _ = self.chase.reset(key)
        return state, self._view(state)

    def step(self, key: Array, state: PredatorPreyState, actions: Array) -> tuple[PredatorPreyState, TimeStep]:
        del key
        state, touching, _ = self.chase.advance(state, actions)
        outside = jnp.maximum(jnp.abs(state.position[:, self.num_predators]) - WALL, 0.0).sum()
        reward = -touching.sum() - WALL_COST * outside
        return state, self._view(state)._replace(reward=reward, truncated=state.time >= self.horizon)


def _as_vector(state: PredatorPreyState) -> Array:
    return jnp.concatenate([state.position.reshape(-1), state.velocity.reshape(-1)])
