"""Percentiles of few samples."""

import math
from collections.abc import Sequence


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: always one of the samples, so the p99 of 60 is the largest. NaN when there are none.

    Raises ValueError when percent is not within 0 (exclusive) and 100.
    """
    if not 0.0 < percent <= 100.0:
        raise ValueError(f"percent must be above 0 and at most 100, got {percent}")
    if not samples:
        return math.nan
    return sorted(samples)[math.ceil(len(samples) * percent / 100.0) - 1]
