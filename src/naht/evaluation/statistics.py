"""Numbers from rows. Nothing here plays; the unit of replication is the trial (a training seed), not the episode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import lgamma, pi, sqrt
from typing import TypeVar

import numpy as np

from naht.errors import require

Row = TypeVar("Row")


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval."""

    mean: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self:.3f}"

    def __format__(self, spec: str) -> str:
        """Mean and half width, each by `spec`, for instance ".2f"; the mean alone if it has no interval."""
        return f"{self.mean:{spec}}" + ("" if np.isnan(self.half_width) else f" ± {self.half_width:{spec}}")


def _student_cdf(t: float, df: int) -> float:
    """P(T <= t) for t >= 0, by Simpson's rule on the density."""
    x = np.linspace(0.0, t, 4001)
    scale = np.exp(lgamma((df + 1) / 2) - lgamma(df / 2)) / sqrt(df * pi)
    y = scale * (1 + x**2 / df) ** (-(df + 1) / 2)
    h = x[1] - x[0]
    return 0.5 + float(h / 3 * (y[0] + y[-1] + 4 * y[1:-1:2].sum() + 2 * y[2:-1:2].sum()))


def student_quantile(p: float, df: int) -> float:
    """The p-quantile (p > 0.5) of Student's t distribution, by bisection."""
    require(df >= 1, f"Student's t needs at least 1 degree of freedom, got {df}")
    low, high = 0.0, 1.0
    while _student_cdf(high, df) < p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def mean_interval(trials: Sequence[float]) -> Interval:
    """Mean and two-sided 95 % Student-t confidence interval over independent trials.

    A single trial has no interval: its bounds are NaN.
    """
    x = np.asarray(trials, float)
    require(x.size >= 1, "a mean needs at least one trial")
    mean = float(x.mean())
    if x.size == 1:
        return Interval(mean, float("nan"), float("nan"), 1)
    half = student_quantile(0.975, x.size - 1) * float(x.std(ddof=1)) / sqrt(x.size)
    return Interval(mean, mean - half, mean + half, x.size)


def interquartile_mean(x: np.ndarray) -> np.ndarray:
    """Mean of the middle half of each row [..., n], with fractional weights at the quartiles."""
    n = x.shape[-1]
    position = np.arange(n)
    weight = np.clip(np.minimum(position + 1, 0.75 * n) - np.maximum(position, 0.25 * n), 0.0, 1.0)
    return (np.sort(x, axis=-1) * weight).sum(-1) / weight.sum()


def bootstrap_iqm(trials: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Interquartile mean over trials with a 95 % percentile-bootstrap interval."""
    x = np.asarray(trials, float)
    require(x.size >= 1, "an interquartile mean needs at least one trial")
    draws = x[np.random.default_rng(seed).integers(0, x.size, (resamples, x.size))]
    low, high = np.quantile(interquartile_mean(draws), [0.025, 0.975])
    return Interval(float(interquartile_mean(x)), float(low), float(high), x.size)


def group_means(
    rows: Iterable[Row], key: Callable[[Row], Hashable], value: Callable[[Row], float]
) -> dict[Hashable, float]:
    """Mean value of the rows in each group, for instance one number per trial."""
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(value(row))
    return {k: float(np.mean(v)) for k, v in groups.items()}
