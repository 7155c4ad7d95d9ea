"""Worlds of a task that play with allowed actions at random, for benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from naht.envs.base import JaxEnvironment
from naht.envs.conformance import random_actions


def random_play(task: JaxEnvironment, worlds: int, steps: int) -> Callable[[], Any]:
    """Plays so many worlds side by side, as one program; those whose episode ends begin anew, as in an arena."""

    @jax.jit
    def play(key: jax.Array) -> jax.Array:
        k_start, k_play = jax.random.split(key)
        start = jax.vmap(task.reset)(jax.random.split(k_start, worlds))

        def step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            state, shown = carry
            k_act, k_step, k_reset = jax.random.split(key, 3)
            actions = random_actions(k_act, shown.avail)
            after = jax.vmap(task.step)(jax.random.split(k_step, worlds), state, actions)
            over = after[1].terminated | after[1].truncated

            def restart() -> Any:
                fresh = jax.vmap(task.reset)(jax.random.split(k_reset, worlds))
                return jax.tree.map(
                    lambda new, old: jnp.where(over.reshape(-1, *[1] * (new.ndim - 1)), new, old), fresh, after
                )

            # What is seen and paid is used, so that no part of a step is left out.
            return jax.lax.cond(over.any(), restart, lambda: after), after[1].obs.sum((1, 2)) + after[1].reward

        return jax.lax.scan(step, start, jax.random.split(k_play, steps))[1]

    return lambda: jax.block_until_ready(play(jax.random.key(0)))
