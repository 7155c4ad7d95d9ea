"""Running and masked standardisation. Where data are spread over devices, statistics are those of all of them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from naht.devices import total, zeros
from naht.envs.base import Array


class RunningStats(NamedTuple):
    """Mean and variance of everything seen so far."""

    seen: Array  # [] how many
    mean: Array  # []
    variance: Array  # []

    @classmethod
    def start(cls) -> RunningStats:
        return cls(zeros(), zeros(), jnp.asarray(np.float32(1.0)))

    def update(self, x: Array, devices: int = 1) -> RunningStats:
        """Take in a batch of any shape."""
        n = x.size * devices
        mean = total(x.sum(), devices) / n
        variance = total(((x - mean) ** 2).sum(), devices) / n
        count = self.seen + n
        delta = mean - self.mean
        # The start's variance is a placeholder; with count 0 it has no weight.
        spread = self.seen * self.variance + n * variance + delta**2 * self.seen * n / count
        return RunningStats(count, self.mean + delta * n / count, spread / count)

    def standardise(self, x: Array, *, subtract_mean: bool = True) -> Array:
        return (x - subtract_mean * self.mean) / jnp.sqrt(self.variance + 1e-8)


def masked_sum(x: Array, weight: Array) -> Array:
    """Weighted sum that ignores whatever stands where the weight is 0, NaN included."""
    return (jnp.where(weight > 0, x, 0.0) * weight).sum()


def masked_mean(x: Array, weight: Array, devices: int = 1) -> Array:
    """Mean of x under weights of the same shape; 0 where no weight is left. Entries without weight may be anything."""
    summed, weights = total((masked_sum(x, weight), weight.sum()), devices)
    return summed / jnp.maximum(weights, 1e-8)


def masked_standardise(x: Array, weight: Array, devices: int = 1) -> Array:
    """(x - mean) / std, with mean and std over the weighted entries only."""
    centred = x - masked_mean(x, weight, devices)
    return centred / jnp.sqrt(masked_mean(centred**2, weight, devices) + 1e-8)
