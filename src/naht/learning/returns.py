"""The one returns function."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from naht.envs.base import Array


def td_lambda(reward: Array, next_value: Array, discount: Array, cut: Array, lam: float) -> Array:
    """TD(lambda) returns, the value targets; minus the values they are GAE advantages.

    All arguments are [T, ...] and broadcast against each other. G_t = r_t + d_t * ((1 - l_t) V_{t+1} + l_t G_{t+1}).

    reward: r_t. next_value: V of what follows step t, before any restart. discount: d_t, gamma or 0 where the task is
    over. cut: bool, nothing after step t belongs to this episode or is known (a restart, the last step of the batch):
    there l_t = 0, elsewhere l_t = lam.
    """
    reward, next_value, discount, cut = jnp.broadcast_arrays(reward, next_value, discount, cut)
    trace = jnp.where(cut, 0.0, lam)

    def step(following: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        r, v, d, l_t = inputs
        target = r + d * (v + l_t * (following - v))
        return target, target

    _, targets = jax.lax.scan(step, next_value[-1], (reward, next_value, discount, trace), reverse=True)
    return targets
