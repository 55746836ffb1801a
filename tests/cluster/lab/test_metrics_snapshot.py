import math

import pytest

from cluster.lab.metrics_snapshot import MetricsSnapshot
from cluster.lab.statistics import percentile

BEFORE = """
# TYPE warmlane_hit_tokens counter
warmlane_hit_tokens_total{process="a#1",replica="a",tier="device"} 100
warmlane_hit_tokens_total{process="b#1",replica="b",tier="device"} 40
"""
AFTER = """
# TYPE warmlane_hit_tokens counter
warmlane_hit_tokens_total{process="a#2",replica="a",tier="device"} 7
warmlane_hit_tokens_total{process="b#1",replica="b",tier="device"} 45
# TYPE warmlane_ttft_seconds histogram
warmlane_ttft_seconds_bucket{le="+Inf",process="b#1"} 3
warmlane_ttft_seconds_sum{process="b#1"} 1.5
warmlane_ttft_seconds_count{process="b#1"} 3
"""


def test_totals_and_groups() -> None:
    snapshot = MetricsSnapshot(BEFORE)
    assert snapshot.total("warmlane_hit_tokens_total") == 140
    assert snapshot.total("warmlane_hit_tokens_total", replica="b") == 40
    assert snapshot.total("warmlane_hit_tokens_total", replica="c") == 0
    assert snapshot.by_label("warmlane_hit_tokens_total", "replica") == {"a": 100, "b": 40}


def test_a_process_that_died_subtracts_nothing() -> None:
    grown = MetricsSnapshot(AFTER).since(MetricsSnapshot(BEFORE))
    assert grown.total("warmlane_hit_tokens_total") == 7 + 5
    assert grown.total("warmlane_ttft_seconds_count") == 3


@pytest.mark.parametrize(("percent", "expected"), [(50, 30), (99, 60), (100, 60), (1, 10)])
def test_percentile_is_one_of_the_samples(percent: float, expected: float) -> None:
    assert percentile([60, 10, 50, 20, 40, 30], percent) == expected


def test_percentile_of_nothing_is_nan() -> None:
    assert math.isnan(percentile([], 50))


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_percentile_refuses_other_percents(percent: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 100"):
        percentile([1.0], percent)
