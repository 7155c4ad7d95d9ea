"""Foraging worlds for tests: many at once, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from naht.envs.lbf import Lbf, LbfState

reset = jax.jit(jax.vmap(Lbf.reset, in_axes=(None, 0)), static_argnums=0)
step = jax.jit(jax.vmap(Lbf.step, in_axes=(None, None, 0, 0)), static_argnums=0)
one_step = jax.jit(Lbf.step, static_argnums=0)
KEY = jax.random.key(0)


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


def world(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def state_of(players, foods, spawned=None, time=0):
    """From (row, column, level) of each."""
    player, food = (np.array(rows, np.int32).reshape(-1, 3).T for rows in (players, foods))
    total = food[2].sum() if spawned is None else spawned
    numbers = (player[:2], player[2], food[:2], food[2], np.int32(total), np.int32(time))
    return LbfState(*map(jnp.asarray, numbers))
