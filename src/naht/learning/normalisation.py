"""Running and masked standardisation."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from naht.envs.base import Array


class RunningStats(NamedTuple):
    """Mean and variance of everything seen so far."""

    seen: Array  # [] how many
    mean: Array  # []
    variance: Array  # []

    @classmethod
    def start(cls) -> RunningStats:
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.ones(()))

    def update(self, x: Array) -> RunningStats:
        """Take in a batch of any shape."""
        n, mean, variance = x.size, x.mean(), x.var()
        count = self.seen + n
        delta = mean - self.mean
        # The start's variance is a placeholder; with count 0 it has no weight.
        total = self.seen * self.variance + n * variance + delta**2 * self.seen * n / count
        return RunningStats(count, self.mean + delta * n / count, total / count)

    def standardise(self, x: Array, *, subtract_mean: bool = True) -> Array:
        return (x - subtract_mean * self.mean) / jnp.sqrt(self.variance + 1e-8)


def masked_sum(x: Array, weight: Array) -> Array:
    """Weighted sum that ignores whatever stands where the weight is 0, NaN included."""
    return (jnp.where(weight > 0, x, 0.0) * weight).sum()


def masked_mean(x: Array, weight: Array) -> Array:
    """Mean of x under weights of the same shape; 0 where no weight is left. Entries without weight may be anything."""
    return masked_sum(x, weight) / jnp.maximum(weight.sum(), 1e-8)


def masked_standardise(x: Array, weight: Array) -> Array:
    """(x - mean) / std, with mean and std over the weighted entries only."""
    centred = x - masked_mean(x, weight)
    return centred / jnp.sqrt(masked_mean(centred**2, weight) + 1e-8)
