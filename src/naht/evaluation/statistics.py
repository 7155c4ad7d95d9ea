"""Numbers from rows. Nothing here plays; the unit of replication is the trial (a training seed), not the episode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
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


def _student_cdf(t: float, df: float) -> float:
    """P(T <= t) for t >= 0, by Simpson's rule on the density."""
    x = np.linspace(0.0, t, 4001)
    scale = np.exp(lgamma((df + 1) / 2) - lgamma(df / 2)) / sqrt(df * pi)
    y = scale * (1 + x**2 / df) ** (-(df + 1) / 2)
    h = x[1] - x[0]
    return 0.5 + float(h / 3 * (y[0] + y[-1] + 4 * y[1:-1:2].sum() + 2 * y[2:-1:2].sum()))


@lru_cache(maxsize=4096)
def student_quantile(p: float, df: float) -> float:
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
    return _student_interval(mean, [x.var(ddof=1) / x.size], [x.size - 1], x.size)


def _student_interval(mean: float, variances: Sequence[float], freedoms: Sequence[int], count: int) -> Interval:
    """95 % interval of a mean whose variance is a sum of parts, each estimated with its own degrees of freedom.

    Those of the sum are Satterthwaite's.
    """
    variance = float(sum(variances))
    if variance == 0:
        return Interval(mean, mean, mean, count)
    freedom = variance**2 / sum(part**2 / df for part, df in zip(variances, freedoms, strict=True))
    half = student_quantile(0.975, freedom) * sqrt(variance)
    return Interval(mean, mean - half, mean + half, count)


def stratified_interval(strata: Sequence[Sequence[float]]) -> Interval:
    """Mean of all values and its 95 % interval, where the number of values in each stratum was fixed beforehand.

    What strata differ in is then no chance: only the variance within them counts. A stratum of one value shows no
    variance; then all values are taken as one sample, which errs on the wide side.
    """
    groups = [np.asarray(values, float) for values in strata]
    everything = np.concatenate(groups)
    if any(x.size < 2 for x in groups):
        return mean_interval(everything.tolist())
    n = everything.size
    variances = [x.size * x.var(ddof=1) / n**2 for x in groups]
    return _student_interval(float(everything.mean()), variances, [x.size - 1 for x in groups], n)


def difference_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean of one sample minus mean of another, with Welch's 95 % interval; each needs two trials."""
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    require(min(a.size, b.size) >= 2, f"a difference needs two trials on each side, got {a.size} and {b.size}")
    variances = [x.var(ddof=1) / x.size for x in (a, b)]
    return _student_interval(float(a.mean() - b.mean()), variances, [a.size - 1, b.size - 1], a.size + b.size)


def effect_size(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Hedges' g: the difference of the means in pooled standard deviations, corrected for small samples."""
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    freedom = a.size + b.size - 2
    pooled = sqrt(((a.size - 1) * a.var(ddof=1) + (b.size - 1) * b.var(ddof=1)) / freedom)
    difference = float(a.mean() - b.mean())
    if pooled == 0:
        return 0.0 if difference == 0 else float("inf") * np.sign(difference)
    return difference / pooled * (1 - 3 / (4 * freedom - 1))


def improvement(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """P(ours > theirs) over all pairs, ties counting half: [..., a], [..., b] -> [...]."""
    a, b = ours[..., :, None], theirs[..., None, :]
    return ((a > b) + 0.5 * (a == b)).mean((-2, -1))


def bootstrap_improvement(
    ours: Sequence[float], theirs: Sequence[float], *, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Probability that a trial of ours beats one of theirs, with a 95 % percentile-bootstrap interval over trials."""
    samples = [np.asarray(side, float) for side in (ours, theirs)]
    rng = np.random.default_rng(seed)
    low, high = np.quantile(
        improvement(*[x[rng.integers(0, x.size, (resamples, x.size))] for x in samples]), [0.025, 0.975]
    )
    return Interval(float(improvement(*samples)), float(low), float(high), samples[0].size + samples[1].size)


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


Runs = Sequence[Sequence[float]]
"""Scores of a method's runs, task by task: [tasks][runs]."""


def _resampled(runs: Runs, resamples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Runs drawn anew within every task: [tasks] of [resamples, runs]. Tasks themselves are no sample."""
    found = [np.asarray(trials, float) for trials in runs]
    return [x[rng.integers(0, x.size, (resamples, x.size))] for x in found]


def _bounds(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def iqm_over_tasks(runs: Runs, *, resamples: int = 10_000, seed: int = 0) -> Interval:
    """Interquartile mean of all runs of all tasks, with a 95 % interval by bootstrap within tasks.

    Scores must be of one scale in all tasks, such as shares of what is possible.
    """
    require(bool(runs) and all(len(trials) for trials in runs), "an interquartile mean needs a run of every task")
    draws = np.concatenate(_resampled(runs, resamples, np.random.default_rng(seed)), axis=-1)
    everything = np.concatenate([np.asarray(trials, float) for trials in runs])
    return Interval(float(interquartile_mean(everything)), *_bounds(interquartile_mean(draws)), everything.size)


def profile(runs: Runs, levels: Sequence[float], *, resamples: int = 2_000, seed: int = 0) -> list[Interval]:
    """For every level, the share of runs whose score is above it, tasks counting equally, with 95 % bootstrap bands."""
    draws = _resampled(runs, resamples, np.random.default_rng(seed))
    found = []
    for at in levels:
        share = float(np.mean([np.mean(np.asarray(trials, float) > at) for trials in runs]))
        band = np.mean([(x > at).mean(-1) for x in draws], axis=0)
        found.append(Interval(share, *_bounds(band), sum(len(trials) for trials in runs)))
    return found


def improvement_over_tasks(ours: Runs, theirs: Runs, *, resamples: int = 5_000, seed: int = 0) -> Interval:
    """Probability that a run of ours beats one of theirs on the same task, the mean over tasks, ties counting half."""
    require(len(ours) == len(theirs), f"ours are of {len(ours)} tasks, theirs of {len(theirs)}")
    rng = np.random.default_rng(seed)
    pairs = zip(_resampled(ours, resamples, rng), _resampled(theirs, resamples, rng), strict=True)
    draws = np.mean([improvement(a, b) for a, b in pairs], axis=0)
    each = [improvement(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(ours, theirs, strict=True)]
    count = sum(len(trials) for trials in (*ours, *theirs))
    return Interval(float(np.mean(each)), *_bounds(draws), count)


def group_means(
    rows: Iterable[Row], key: Callable[[Row], Hashable], value: Callable[[Row], float]
) -> dict[Hashable, float]:
    """Mean value of the rows in each group, for instance one number per trial."""
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(value(row))
    return {k: float(np.mean(v)) for k, v in groups.items()}
