"""Scripted teammates: policies without parameters.

The four bots of the bit game. Action 1 is "say 1"; they read nothing but their seat and the clock, so they play any
team size. Their randomness is their policy: it stays when a team plays greedily.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from naht.agents.policy import Percept, Policy, masked_log_probs, pick
from naht.config import setting
from naht.envs.base import Array, EnvSpec, PyTree
from naht.errors import NahtError, require, unknown


def _say_one(probability: Array, percept: Percept, key: Array) -> tuple[Array, Array]:
    """Say 1 with a probability [...], respecting masks. Returns (actions, log-probabilities)."""
    p = jnp.broadcast_to(probability, percept.slot.shape)
    log_probs = masked_log_probs(jnp.stack([jnp.log1p(-p), jnp.log(p)], axis=-1), percept.avail[..., :2])
    action = jax.random.categorical(key, log_probs).astype(jnp.int32)
    return action, pick(log_probs, action)


def _check_probability(name: str, value: float) -> None:
    require(0.0 <= value <= 1.0, f"{name} is {value}: a probability lies between 0 and 1")


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

    p: float = 1 / 3

    def __post_init__(self) -> None:
        _check_probability("p", self.p)

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

    start: float = 0.9
    end: float = 0.1
    horizon: int = 25

    def __post_init__(self) -> None:
        _check_probability("start", self.start)
        _check_probability("end", self.end)

    def probability(self, time: Array, slot: Array) -> Array:
        del slot
        progress = jnp.clip(time / max(self.horizon - 1, 1), 0.0, 1.0)
        return self.start + (self.end - self.start) * progress


@setting
@dataclass(frozen=True)
class Turns(_Clock):
    """Seat t mod M says 1 at step t."""

    num_agents: int = 3

    def probability(self, time: Array, slot: Array) -> Array:
        return (slot == time % self.num_agents).astype(jnp.float32)


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
}
"""Scripted teammates by task and name."""


def make_bot(text: str, spec: EnvSpec) -> Policy:
    """A bot from its name and, after a colon, its numbers: 'bernoulli', 'bernoulli:0.5', 'explore:0.9,0.1'."""
    name, _, numbers = text.partition(":")
    bots = BOTS.get(spec.name, {})
    if name not in bots:
        raise unknown(f"teammate for {spec.name}", name, [*bots, "a path to a saved agent"])
    try:
        return bots[name].make(spec, *[float(n) for n in numbers.split(",") if n])
    except (TypeError, ValueError) as e:
        raise NahtError(f"teammate '{text}' does not fit: {name} {bots[name].description}") from e
