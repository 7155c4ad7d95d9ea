"""What learners share in moving their parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from naht.devices import zeros
from naht.envs.base import Array, PyTree
from naht.learning.minibatches import Loss, Metrics, Minibatches, chunked_gradient


def clipped_adam(max_norm: float) -> optax.GradientTransformation:
    """Adam on gradients of bounded norm."""
    return optax.chain(optax.clip_by_global_norm(max_norm), optax.scale_by_adam(eps=1e-5))


def start(optimiser: optax.GradientTransformation, params: PyTree) -> PyTree:
    """The state of an optimiser of these parameters as one vector: all zeros. Nothing is compiled for it."""
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    shapes = jax.eval_shape(lambda: optimiser.init(jnp.zeros(size)))
    return jax.tree.map(lambda leaf: zeros(*leaf.shape, dtype=leaf.dtype), shapes)


def as_vector(params: PyTree) -> Array:
    """All parameters one after the other, [P]."""
    return ravel_pytree(params)[0]


def anneal(start: float, end: float | None, progress: Array) -> Array | float:
    """Linear from start to end as progress goes from 0 to 1; constant without an end."""
    return start if end is None else start + (end - start) * progress


def fit(
    loss: Loss,
    params: PyTree,
    opt: PyTree,
    optimiser: optax.GradientTransformation,
    rate: Array | float,
    batch: Any,
    minibatches: Minibatches,
    devices: int,
) -> tuple[tuple[PyTree, PyTree], Metrics]:
    """One optimiser step per minibatch. Returns the new parameters and optimiser state, and metrics [steps] of each."""
    # All parameters as one vector: few long operations instead of many tiny ones, each of which is compiled.
    vector, as_tree = ravel_pytree(params)

    def step(carry: tuple[Array, PyTree], minibatch: Minibatches) -> tuple[tuple[Array, PyTree], Metrics]:
        vector, opt = carry
        gradient, log = chunked_gradient(loss, as_tree(vector), batch, minibatch, devices)
        update, opt = optimiser.update(gradient, opt)
        return (vector - rate * update, opt), log | {"gradient_norm": optax.tree.norm(gradient)}

    (vector, opt), log = jax.lax.scan(step, (vector, opt), minibatches)
    return (as_tree(vector), opt), log
