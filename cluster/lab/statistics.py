"""Percentiles of one run, and means with confidence over several seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 1000


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always one of the samples, so the p99 of 60 is the largest. NaN when there are none.

    Raises ValueError when percent is not within 0 (exclusive) and 100.
    """
    if not 0.0 < percent <= 100.0:
        raise ValueError(f"percent must be above 0 and at most 100, got {percent}")
    if not samples:
        return math.nan
    return sorted(samples)[math.ceil(len(samples) * percent / 100.0) - 1]


@dataclass(frozen=True, slots=True)
class Interval:
    """low, high: bounds that hold 95 % of the resampled differences. value: the difference in the sample itself."""

    low: float
    value: float
    high: float

    @property
    def holds_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], percent: float | None, num_resamples: int = NUM_RESAMPLES
) -> Interval:
    """Of a percentile (or of the mean: None), `ours` minus `theirs`, by the paired bootstrap (Efron, 1979).

    The n-th of both sides are the same request with the same arrival and the same noise, and are drawn together.
    Raises ValueError for samples of different or no length.
    """
    if len(ours) != len(theirs) or not len(ours):
        raise ValueError(f"paired samples must have equal lengths above 0, got {len(ours)} and {len(theirs)}")
    pairs = np.array([ours, theirs])
    rng = np.random.default_rng(0)
    differences = np.empty(num_resamples)
    for number in range(num_resamples):
        drawn = pairs[:, rng.integers(0, len(ours), len(ours))]
        differences[number] = np.subtract(*_statistic(drawn, percent))
    low, high = np.percentile(differences, [2.5, 97.5])
    value = np.subtract(*_statistic(pairs, percent))
    return Interval(float(low), float(value), float(high))


def _statistic(samples: np.ndarray, percent: float | None) -> np.ndarray:
    if percent is None:
        return samples.mean(axis=1)
    return np.percentile(samples, percent, axis=1, method="inverted_cdf")
