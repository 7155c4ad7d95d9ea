"""How an update computes gradients quickly: rows that count, in chunks that fit the cache, on all devices.

A row is an agent's part of an episode. Rows differ in whether they train a network at all (an uncontrolled agent's row
does not train the actor), so every minibatch has its active rows in front and computes only these. Gradients are added
up over chunks of a few rows: the temporaries of a chunk stay in the processor's cache, and memory does not grow with
the batch. Every device does this with its own rows; the sums are added up over devices.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from naht.devices import total
from naht.envs.base import Array, PyTree
from naht.pieces import AtOnce, at_most

Metrics = dict[str, Array]
Loss = Callable[..., tuple[Array, tuple[Array, Metrics]]]
"""(params, *rows) -> (sum of losses, (sum of weights, metrics as sums under the same weights))."""


class Rows(Protocol):
    """A batch of experience that can be read row by row."""

    def take(self, rows: Any) -> tuple[Any, ...]:
        """The rows of these indices [C], as a loss reads them. Indices beyond the end give rows without weight."""
        ...


class Minibatches(NamedTuple):
    """Which rows every optimiser step learns from."""

    rows: Any  # [steps, chunks, chunk] int32, the active rows of a step first; or a pytree that says more of each
    chunks: Array  # [steps] int32, how many chunks have active rows: the others are never computed


def draw_minibatches(
    key: Array, active: Array, epochs: int, minibatches: int, at_once: AtOnce, share: float = 1.0
) -> Minibatches:
    """Every epoch shuffles the active rows (active [R] bool) and deals them out evenly, in chunks of some at once.

    `share` of the rows are expected to be active; chunks are as long as these fill best.
    """
    num_rows = active.shape[0]
    per_minibatch = ceil(num_rows / minibatches)
    chunk = filled(per_minibatch, at_once, share)
    chunks = ceil(per_minibatch / chunk)

    def deal(chance: Array) -> Array:
        order = jnp.argsort(jnp.where(active, chance, 2.0))
        # Dealing like cards keeps every minibatch's active rows at its front.
        order = jnp.pad(order, (0, minibatches * per_minibatch - num_rows), constant_values=num_rows)
        dealt = order.reshape(per_minibatch, minibatches).T
        dealt = jnp.pad(dealt, ((0, 0), (0, chunks * chunk - per_minibatch)), constant_values=num_rows)
        return dealt.reshape(minibatches, chunks, chunk)

    rows = jax.vmap(deal)(jax.random.uniform(key, (epochs, num_rows))).reshape(epochs * minibatches, chunks, chunk)
    counts = (active.sum() - jnp.arange(minibatches) + minibatches - 1) // minibatches
    return Minibatches(rows, jnp.tile((counts + chunk - 1) // chunk, epochs))


def filled(rows: int, at_once: AtOnce, share: float) -> int:
    """How many rows of a minibatch to compute at once, at most so many, such that few places stay empty.

    A chunk costs what its places cost, taken or not. If a tenth more rows are active than expected, as happens by
    chance, they must not need a chunk of their own.
    """
    if at_once == "all":
        return rows
    usual = max(1, min(rows, ceil(1.1 * share * rows)))
    return ceil(usual / ceil(usual / at_most(at_once, rows)))


def chunked_gradient(
    loss: Loss, params: PyTree, batch: Rows, minibatch: Minibatches, devices: int = 1
) -> tuple[Array, Metrics]:
    """Gradient of the weighted mean loss over one minibatch of all devices, and its metrics as means.

    The gradient is a vector [P], its entries in the order of `ravel_pytree(params)`.
    """

    def sums(chunk: int | Array) -> tuple[Array, PyTree]:
        """Over one chunk: the gradient, and the loss's weight and metrics."""
        rows = jax.tree.map(lambda leaf: leaf[chunk], minibatch.rows)
        gradient, facts = jax.grad(loss, has_aux=True)(params, *batch.take(rows))
        return ravel_pytree(gradient)[0], facts

    def add(i: Array, so_far: PyTree) -> PyTree:
        return jax.tree.map(jnp.add, so_far, sums(i))

    if jax.tree.leaves(minibatch.rows)[0].shape[0] == 1:
        all_sums = sums(0)
    else:
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(sums, 0))
        all_sums = jax.lax.fori_loop(0, minibatch.chunks, add, zeros)
    # As one vector, devices have to wait for each other once instead of once per array.
    flat, unflatten = ravel_pytree(all_sums)
    gradient, (weight, metrics) = unflatten(total(flat, devices))
    weight = jnp.maximum(weight, 1e-8)
    return gradient / weight, {name: value / weight for name, value in metrics.items()}


def map_rows(f: Callable[[PyTree], PyTree], rows: PyTree, at_once: AtOnce) -> PyTree:
    """`f` of a few rows at a time. Leaves [R, ...] of `rows` -> leaves [R, ...] of what f gives for leaves [C, ...]."""
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    size = max(n for n in range(1, at_most(at_once, num_rows) + 1) if num_rows % n == 0)
    if size == num_rows:
        return f(rows)
    chunks = jax.tree.map(lambda leaf: leaf.reshape(num_rows // size, size, *leaf.shape[1:]), rows)
    return jax.tree.map(lambda leaf: leaf.reshape(num_rows, *leaf.shape[2:]), jax.lax.map(f, chunks))
