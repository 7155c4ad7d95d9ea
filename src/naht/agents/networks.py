"""Recurrent networks, built from a GRU whose backward pass is written by hand.

All sequence functions are time-major: x [T, R, I] for R independent rows (an agent in an environment is a row).
`first` [T, R] marks rows whose episode begins at that step: their hidden state is cleared before the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from naht.config import Amount, Width, setting
from naht.envs.base import Array, EnvSpec, PyTree

GRUResiduals = tuple[Array, Array, Array, Array, Array, Array, Array, Array]


def _gru_forward(x: Array, h0: Array, first: Array, w: Array, b: Array) -> tuple[Array, GRUResiduals]:
    size = h0.shape[-1]

    def step(h: Array, inputs: tuple[Array, Array]) -> tuple[Array, tuple[Array, ...]]:
        x_t, first_t = inputs
        h = jnp.where(first_t[:, None], 0.0, h)
        p = h @ w
        reset = jax.nn.sigmoid(x_t[:, :size] + p[:, :size])
        keep = jax.nn.sigmoid(x_t[:, size : 2 * size] + p[:, size : 2 * size])
        recurrent = p[:, 2 * size :] + b
        candidate = jnp.tanh(x_t[:, 2 * size :] + reset * recurrent)
        new = candidate + keep * (h - candidate)
        return new, (new, h, reset, keep, candidate, recurrent)

    if x.shape[0] == 1:  # acting: no loop, and less to trace
        steps = tuple(leaf[None] for leaf in step(h0, (x[0], first[0]))[1])
    else:
        _, steps = jax.lax.scan(step, h0, (x, first))
    hs, before, reset, keep, candidate, recurrent = steps
    return hs, (first, w, b, before, reset, keep, candidate, recurrent)


@jax.custom_vjp
def gru(x: Array, h0: Array, first: Array, w: Array, b: Array) -> Array:
    """Run a GRU over time, given inputs that are already projected.

    x [T, R, 3H] holds W x + bias for the reset, update and candidate gates; h0 [R, H]; first [T, R] bool;
    w [H, 3H] and b [H] are the recurrent weights and the bias inside the reset gate. Returns every h [T, R, H].

    Plain autodiff through a scan would add up the weight gradient with a small matmul in every step. Here the backward
    scan only propagates dh, and the weight gradient is one large matmul over all T*R rows afterwards.
    """
    hs, (_, _, _, _, reset, keep, _, _) = _gru_forward(x, h0, first, w, b)
    if hs.shape[0] == 1:
        return hs
    # Without a gradient nobody reads the gates, and XLA would fuse them into one kernel that is twice as slow. Adding
    # nothing of their last step keeps them.
    return hs.at[-1].add(0.0 * (reset[-1] + keep[-1]))


def _gru_backward(residuals: GRUResiduals, grad: Array) -> tuple[Array, Array, None, Array, Array]:
    first, w, b, before, reset, keep, candidate, recurrent = residuals
    # Everything that does not depend on dh is computed for all steps at once, outside the scan.
    to_candidate = (1.0 - keep) * (1.0 - candidate**2)
    to_keep = (before - candidate) * keep * (1.0 - keep)
    to_reset = recurrent * reset * (1.0 - reset)

    def step(dh: Array, inputs: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        g, first_t, keep_t, to_candidate_t, to_keep_t, to_reset_t, reset_t = inputs
        dh = dh + g
        d_candidate = dh * to_candidate_t
        d_recurrent = jnp.concatenate([d_candidate * to_reset_t, dh * to_keep_t, d_candidate * reset_t], axis=-1)
        d_before = dh * keep_t + d_recurrent @ w.T
        return jnp.where(first_t[:, None], 0.0, d_before), (d_recurrent, d_candidate)

    inputs = (grad, first, keep, to_candidate, to_keep, to_reset, reset)
    d_h0, (d_recurrent, d_candidate) = jax.lax.scan(step, jnp.zeros_like(grad[0]), inputs, reverse=True)
    size = b.shape[0]
    d_x = jnp.concatenate([d_recurrent[..., : 2 * size], d_candidate], axis=-1)
    d_w = before.reshape(-1, size).T @ d_recurrent.reshape(-1, 3 * size)
    d_b = jnp.ones(before.shape[0] * before.shape[1]) @ d_recurrent[..., 2 * size :].reshape(-1, size)
    return d_x, d_h0, None, d_w, d_b


gru.defvjp(_gru_forward, _gru_backward)


@jax.custom_vjp
def affine(x: Array, w: Array, b: Array) -> Array:
    """x [..., I] @ w [I, O] + b [O]. The bias gradient is a product with ones, which is far quicker than a sum here."""
    return x @ w + b


def _affine_forward(x: Array, w: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return affine(x, w, b), (x, w)


def _affine_backward(residuals: tuple[Array, Array], grad: Array) -> tuple[Array, Array, Array]:
    x, w = residuals
    rows = grad.reshape(-1, grad.shape[-1])
    return grad @ w.T, x.reshape(-1, x.shape[-1]).T @ rows, jnp.ones(rows.shape[0]) @ rows


affine.defvjp(_affine_forward, _affine_backward)


@struct.dataclass
class Orthogonal(nn.meta.AxisMetadata):
    """A weight matrix that is to be drawn by `init_params`: orthogonal blocks [I, O / blocks], side by side."""

    value: Any
    scale: float = struct.field(pytree_node=False)
    blocks: int = struct.field(pytree_node=False)

    def unbox(self) -> Any:
        return self.value

    def replace_boxed(self, val: Any) -> Orthogonal:
        return self.replace(value=val)

    def add_axis(self, index: int, params: dict[Any, Any]) -> Orthogonal:
        del index, params
        return self

    remove_axis = add_axis

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """[I, O]."""
        size, width = self.value.shape[0], self.value.shape[1] // self.blocks
        return np.concatenate([self.scale * _orthogonal(rng, size, width) for _ in range(self.blocks)], axis=1)


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Uniform among the matrices [rows, columns] with orthonormal columns, or rows if these are fewer."""
    q, r = np.linalg.qr(rng.normal(size=(max(rows, columns), min(rows, columns))))
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return q if rows >= columns else q.T


def orthogonal(scale: float = 1.0, blocks: int = 1) -> Callable[..., Orthogonal]:
    """A flax initialiser of weights."""
    return lambda _, shape: Orthogonal(jnp.zeros(shape), scale, blocks)


def init_params(module: nn.Module, key: Array, *inputs: Array) -> PyTree:
    """The parameters of a network that will read such inputs; biases start at 0.

    They are drawn by NumPy: compiled, the decompositions of all these shapes would take longer than the first update.
    Under `jax.eval_shape` nothing is drawn.
    """
    shapes = jax.eval_shape(module.init, key, *inputs)
    if isinstance(key, jax.core.Tracer):
        unboxed = jax.tree.map(
            lambda leaf: leaf.value if _is_orthogonal(leaf) else leaf, shapes, is_leaf=_is_orthogonal
        )
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), unboxed)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))

    def draw(leaf: Any) -> Array:
        values = leaf.draw(rng) if _is_orthogonal(leaf) else np.zeros(leaf.shape)
        return jnp.asarray(values, jnp.float32)

    return jax.tree.map(draw, shapes, is_leaf=_is_orthogonal)


def _is_orthogonal(leaf: Any) -> bool:
    return isinstance(leaf, Orthogonal)


class GRU(nn.Module):
    """A GRU layer over [T, R, I], with the usual parameters: the recurrent weights of each gate are orthogonal."""

    size: int

    @nn.compact
    def __call__(self, x: Array, h0: Array, first: Array) -> Array:
        w_in = self.param("input_kernel", orthogonal(), (x.shape[-1], 3 * self.size))
        b_in = self.param("input_bias", nn.initializers.zeros, (3 * self.size,))
        w = self.param("kernel", orthogonal(blocks=3), (self.size, 3 * self.size))
        b = self.param("candidate_bias", nn.initializers.zeros, (self.size,))
        return gru(affine(x, w_in, b_in), h0, first, w, b)


class Dense(nn.Module):
    """A linear layer with orthogonal weights."""

    size: int
    scale: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", orthogonal(self.scale), (x.shape[-1], self.size))
        return affine(x, kernel, self.param("bias", nn.initializers.zeros, (self.size,)))


def dense(size: int, scale: float = 2**0.5) -> Dense:
    """A linear layer; the default scale suits the ReLU that follows."""
    return Dense(size, scale)


def normalise() -> nn.LayerNorm:
    """LayerNorm without scale and bias: the linear layer that follows absorbs both, so they would only cost time."""
    return nn.LayerNorm(use_scale=False, use_bias=False)


@setting
@dataclass(frozen=True)
class NetworkConfig:
    """The shape of a recurrent actor or critic."""

    hidden: Width = 64
    """Width of the dense layers and of the GRU."""
    layers: Amount = 2
    """Dense layers before the GRU."""
    layer_norm: bool = True
    """LayerNorm after every dense layer and after the GRU."""
    input_norm: bool = True
    """LayerNorm of the input."""
    history: bool = True
    """False: a reflex agent. It reads its present observation only: no recurrence, no last action, no seat."""


class RecurrentNetwork(nn.Module):
    """[LayerNorm] -> (Dense, ReLU, LayerNorm) x layers -> GRU -> LayerNorm -> Dense."""

    config: NetworkConfig
    outputs: int
    output_scale: float

    @nn.compact
    def __call__(self, x: Array, h0: Array, first: Array) -> tuple[Array, Array]:
        """x [T, R, I], h0 [R, H], first [T, R] -> (outputs [T, R, outputs], hidden states [T, R, H])."""
        if self.config.input_norm:
            x = normalise()(x)
        for _ in range(self.config.layers):
            x = nn.relu(dense(self.config.hidden)(x))
            if self.config.layer_norm:
                x = normalise()(x)
        if not self.config.history:
            return dense(self.outputs, self.output_scale)(x), jnp.broadcast_to(h0, (*x.shape[:2], h0.shape[-1]))
        hidden = GRU(self.config.hidden)(x, h0, first)
        y = normalise()(hidden) if self.config.layer_norm else hidden
        return dense(self.outputs, self.output_scale)(y), hidden


def input_size(network: NetworkConfig, spec: EnvSpec) -> int:
    """The width of `agent_inputs`."""
    return spec.obs_size + (spec.num_actions + spec.num_agents if network.history else 0)


def agent_inputs(network: NetworkConfig, spec: EnvSpec, obs: Array, last_action: Array, slot: Array) -> Array:
    """What every network of an agent reads: its observation, last action and seat. [..., O], [...], [...] -> [..., I].

    A reflex agent reads its observation only.
    """
    if not network.history:
        return obs
    one_hots = jax.nn.one_hot(last_action, spec.num_actions), jax.nn.one_hot(slot, spec.num_agents)
    return jnp.concatenate([obs, *one_hots], axis=-1)
