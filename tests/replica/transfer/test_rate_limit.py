"""Bytes per second over all pulls, in turns."""

import pytest

from replica.transfer.rate_limit import RateLimit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_limit_nobody_waits() -> None:
    limit = RateLimit(None)
    assert [limit.reserve(10**12) for _ in range(3)] == [0.0] * 3


def test_each_turn_comes_when_what_was_before_has_gone() -> None:
    limit = RateLimit(1000, Clock())
    assert [limit.reserve(500) for _ in range(4)] == [0.0, 0.5, 1.0, 1.5]


def test_time_that_passes_makes_room() -> None:
    clock = Clock()
    limit = RateLimit(1000, clock)
    limit.reserve(2000)
    clock.now += 1.5
    assert limit.reserve(100) == pytest.approx(0.5)


@pytest.mark.parametrize("idle", [1.0, 1000.0])
def test_an_unused_past_gives_no_more_than_a_short_burst(idle: float) -> None:
    clock = Clock()
    limit = RateLimit(1000, clock)
    clock.now += idle
    assert [limit.reserve(50) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.05])


def test_in_the_long_run_the_rate_holds() -> None:
    clock = Clock()
    limit = RateLimit(1000, clock)
    for _ in range(1000):
        clock.now += limit.reserve(37)
    assert clock.now - 100 == pytest.approx(36.963, abs=0.2)
