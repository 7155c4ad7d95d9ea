"""Teammates: one as a plain function, at the speed of Python, one as a policy in JAX."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

import naht


def stubborn(s: naht.Situation) -> int:
    """Shows the colour of its seat, whatever the others do."""
    return s.slot % len(s.avail)


@naht.setting
@dataclass(frozen=True)
class Copycat:
    """Shows the colour that most have shown in the last step."""

    def init(self, key: jax.Array) -> tuple[()]:
        del key
        return ()

    def initial_memory(self, batch: tuple[int, ...]) -> tuple[()]:
        del batch
        return ()

    def act(
        self, params: tuple[()], memory: tuple[()], percept: naht.Percept, key: jax.Array, greedy: bool
    ) -> tuple[jax.Array, tuple[()], jax.Array]:
        del params, key, greedy
        colours = percept.avail.shape[-1]
        votes = percept.obs.reshape(*percept.obs.shape[:-1], -1, colours).sum(-2)
        action = votes.argmax(-1).astype(jnp.int32)
        return action, memory, jnp.zeros(action.shape)


STUBBORN = naht.Teammate(stubborn, task="colours")
COPYCAT = naht.Teammate(Copycat(), task="colours")
