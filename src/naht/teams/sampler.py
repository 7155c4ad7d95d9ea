"""The team sampling procedure X(U, C): who plays with whom in an episode.

X belongs to the problem, not to the algorithm. It draws N, then N members of C and M - N members of U, and gives each a
slot. Ad hoc teamwork (N = 1) and ordinary cooperative MARL (N = M) are settings of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from naht.envs.base import Array, Environment, HostEnvironment, PyTree
from naht.errors import NahtError, require

Probabilities = tuple[float, ...] | Callable[[PyTree], Array] | None
"""A distribution: its probabilities, a function of the environment's initial state giving them, or None: uniform."""

NumControlled = Literal["uniform", "all"] | int | tuple[float, ...]
"""How N is drawn: uniform on 1..M-1, always M, always that number, or with probabilities for N = 0..M."""


Slots = Literal["random", "first", "last"]
"""Which seats the controlled agents take: any, the first ones, the last ones."""


class Team(NamedTuple):
    """Who sits where. A mask and an index: team membership is data."""

    controlled: Array  # [..., M] bool
    member: Array  # [..., M] int32, an index into C where controlled, into U elsewhere


def describe(team: Team, strangers: int) -> Array:
    """What could be told of a team [..., M]: which of U's `strangers` members sit in it, then which seats are
    controlled. [..., strangers + M] of zeros and ones."""
    who = jax.nn.one_hot(team.member, strangers) * ~team.controlled[..., None]
    return jnp.concatenate([who.max(-2), team.controlled.astype(jnp.float32)], axis=-1)


class Sampler(Protocol):
    """Anything that draws teams; `TeamSampler` is ours. Must be hashable, like environments."""

    @property
    def num_agents(self) -> int: ...

    def sample(self, key: Array, initial_state: PyTree) -> Team:
        """One team for one episode that starts in `initial_state`."""
        ...


def _check_probabilities(name: str, probabilities: Probabilities, size: int) -> None:
    if not isinstance(probabilities, tuple):
        return
    count, total = len(probabilities), sum(probabilities)
    require(count == size, f"{name} needs {size} probabilities, got {count}")
    require(all(p >= 0 for p in probabilities), f"{name} has a negative probability: {probabilities}")
    require(abs(total - 1) < 1e-6, f"the probabilities of {name} sum to {total:g}, not to 1: {probabilities}")


def _log_probabilities(probabilities: Probabilities, size: int, initial_state: PyTree) -> Array:
    if probabilities is None:
        return jnp.zeros(size)
    values = probabilities(initial_state) if callable(probabilities) else jnp.asarray(probabilities)
    return jnp.log(values)


@dataclass(frozen=True)
class Selection:
    """g: how seats are filled from a population of `size` members."""

    size: int
    mix: bool = False
    """False: one member lends all players of the episode. True: every seat draws its own member."""
    replace: bool = True
    """With `mix`: may a member sit twice?"""
    probabilities: Probabilities = None

    def __post_init__(self) -> None:
        _check_probabilities("a selection", self.probabilities, self.size)
        require(self.mix or self.replace, "replace=False needs mix=True: without mixing one member fills every seat")

    def check(self, side: str, seats: int) -> None:
        """Can up to `seats` seats be filled?"""
        if seats == 0:
            return
        require(self.size > 0, f"up to {seats} {side} seats are to be filled, but the {side} population is empty")
        if self.mix and not self.replace:
            fixed = self.probabilities if isinstance(self.probabilities, tuple) else (1.0,) * self.size
            usable = sum(p > 0 for p in fixed)
            require(
                seats <= usable,
                f"up to {seats} {side} agents without replacement were asked for, but only {usable} exist",
            )

    def sample(self, noise: Array, initial_state: PyTree, seats: int) -> Array:
        """Members [seats] int32, in the order in which they are drawn; as many as `check` allowed mean something.

        `noise` [seats, size] has the Gumbel distribution: the largest log p + noise is a draw from p.
        """
        if self.size == 0:
            return jnp.zeros(seats, jnp.int32)
        scores = _log_probabilities(self.probabilities, self.size, initial_state) + noise
        if not self.mix:
            return jnp.full(seats, scores[0].argmax(), jnp.int32)
        if self.replace:
            return scores.argmax(-1).astype(jnp.int32)
        # In descending order they are drawn one after the other without replacement.
        order = jnp.argsort(-scores[0])
        return order[jnp.minimum(jnp.arange(seats), self.size - 1)].astype(jnp.int32)


@dataclass(frozen=True)
class TeamSampler:
    """X: N ~ phi_M, controlled members by g_C, uncontrolled ones by g_U, in random slots. See `team_sampler`."""

    num_agents: int
    phi: Probabilities
    """P(N = 0), ..., P(N = M), or a function of the initial state."""
    controlled: Selection
    uncontrolled: Selection
    slots: Slots = "random"
    """Where the controlled agents sit."""

    def __post_init__(self) -> None:
        m = self.num_agents
        require(m >= 1, f"num_agents is {m}: a team has at least 1 agent")
        _check_probabilities(f"N in a team of {m}", self.phi, m + 1)
        possible = [n for n in range(m + 1) if not isinstance(self.phi, tuple) or self.phi[n] > 0]
        self.controlled.check("controlled", max(possible))
        self.uncontrolled.check("uncontrolled", m - min(possible))

    @property
    def controlled_share(self) -> float:
        """The share of seats that are controlled, on average; 1 where that depends on the initial state."""
        if not isinstance(self.phi, tuple):
            return 1.0
        return sum(n * p for n, p in enumerate(self.phi)) / self.num_agents

    def sample(self, key: Array, initial_state: PyTree) -> Team:
        """Draw the team of one episode. Returns arrays [M]."""
        m = self.num_agents
        # One draw of noise for all: compiling a random draw takes longer than compiling what is done with it.
        sizes = (m + 1, m, m * self.controlled.size, m * self.uncontrolled.size)
        noise = jax.random.gumbel(key, (sum(sizes),))
        for_n, for_slots, for_ours, for_theirs = jnp.split(noise, np.cumsum(sizes)[:-1])
        n = (_log_probabilities(self.phi, m + 1, initial_state) + for_n).argmax()
        order = jnp.argsort(for_slots)
        seats = order if self.slots == "random" else jnp.arange(m)
        controlled = seats >= m - n if self.slots == "last" else seats < n
        # The seats of a side take its members in a random order: who is drawn first does not sit first.
        same_side = controlled[:, None] == controlled
        turn = (same_side & (order < order[:, None])).sum(-1)
        ours = self.controlled.sample(for_ours.reshape(m, -1), initial_state, m)[turn]
        theirs = self.uncontrolled.sample(for_theirs.reshape(m, -1), initial_state, m)[turn]
        return Team(controlled, jnp.where(controlled, ours, theirs))


def num_controlled_probabilities(num_agents: int, num_controlled: NumControlled) -> tuple[float, ...]:
    """phi_M as probabilities for N = 0..M."""
    m = num_agents
    if isinstance(num_controlled, tuple):
        return num_controlled
    if num_controlled == "uniform":
        require(m >= 2, f"N is uniform on 1..M-1, which is empty for a team of {m}")
        return (0.0, *[1.0 / (m - 1)] * (m - 1), 0.0)
    n = m if num_controlled == "all" else num_controlled
    if not isinstance(n, int):
        raise NahtError(f"N is '{n}': choose uniform, all, a number from 0 to {m} or {m + 1} probabilities")
    require(0 <= n <= m, f"N is {n}: a team of {m} has between 0 and {m} controlled agents")
    return tuple(float(i == n) for i in range(m + 1))


def team_sampler(
    num_agents: int,
    num_uncontrolled_members: int,
    num_controlled: NumControlled = "uniform",
    *,
    num_controlled_members: int = 1,
    mix: bool = False,
    replace: bool = True,
    probabilities: Probabilities = None,
    slots: Slots = "random",
) -> TeamSampler:
    """The usual procedures in one call; the defaults are the paper's X_train.

    `num_controlled` is N: "uniform" on 1..M-1, a number (1: ad hoc teamwork), "all" (cooperative MARL) or P(N = 0..M).
    `mix`, `replace` and `probabilities` say how the uncontrolled members are drawn (see `Selection`).
    """
    return TeamSampler(
        num_agents,
        num_controlled_probabilities(num_agents, num_controlled),
        Selection(num_controlled_members),
        Selection(num_uncontrolled_members, mix, replace, probabilities),
        slots,
    )


def _initial_state(env: Environment) -> PyTree:
    """Of an episode. What is known of worlds outside of JAX is the seed of their episode."""
    return jnp.uint32(0) if isinstance(env, HostEnvironment) else jax.jit(env.reset)(jax.random.key(0))[0]


def check_sampler(sampler: Sampler, env: Environment, members: tuple[int, int] | None = None, draws: int = 64) -> None:
    """Draw teams for a real initial state, so that a wrong size or a faulty user function fails before any work.

    `members` are the sizes of C and U, whose members a team is made of.
    """
    m = env.spec.num_agents
    require(sampler.num_agents == m, f"the sampler makes teams of {sampler.num_agents}, '{env.spec.name}' needs {m}")
    if isinstance(sampler, TeamSampler):  # draws what its sizes say, if its functions do what they should
        sides = {"N": (sampler.phi, m + 1)}
        sides |= {s: (g.probabilities, g.size) for s in ("controlled", "uncontrolled") for g in [getattr(sampler, s)]}
        functions = {name: (f, size) for name, (f, size) in sides.items() if callable(f)}
        if functions:
            state = _initial_state(env)
        for name, (function, size) in functions.items():
            values = tuple(np.asarray(function(state), float).tolist())
            _check_probabilities(f"{name} (from its function of the initial state)", values, size)
        return
    state = _initial_state(env)
    team = sampler.sample(jax.random.key(0), state)
    require(isinstance(team, Team), f"the sampler drew {team!r}, not a naht.Team"[:200])
    for name, kind, drawn in (("controlled", "bool", team.controlled), ("member", "int", team.member)):
        fine = hasattr(drawn, "shape") and hasattr(drawn, "dtype")
        require(fine, f"'{name}' of a sampled team is {drawn!r}, not an array"[:200])
        require(drawn.shape == (m,), f"'{name}' of a sampled team has shape {drawn.shape}, expected {(m,)}")
        is_kind = jnp.issubdtype(drawn.dtype, jnp.bool_ if kind == "bool" else jnp.integer)
        require(is_kind, f"'{name}' of a sampled team is of type {drawn.dtype}, expected {kind}")
    if members is None:
        return
    teams = jax.device_get(jax.vmap(lambda key: sampler.sample(key, state))(jax.random.split(jax.random.key(0), draws)))
    for side, size, seats in (("C", members[0], teams.controlled), ("U", members[1], ~teams.controlled)):
        wrong = teams.member[seats & ((teams.member < 0) | (teams.member >= size))]
        require(
            wrong.size == 0,
            f"the sampler drew member {wrong[0] if wrong.size else ''} of {side}, which has {size} members",
        )
