"""Who could take what from whom."""

from collections.abc import Sequence
from random import Random

import pytest

from router.load.pulls import BEGIN_SECONDS, with_pulls, with_restoring
from router.load.views import ReplicaView
from router.policies.expected_finish import ExpectedFinishPolicy
from tests.router.policies.shapes import prompt

BLOCK_BYTES = 1000


def pulls(*views: ReplicaView, held: dict[str, int], givers: tuple[str, ...] = ("a", "b", "c")) -> dict[str, object]:
    found = planned(views, held, givers)
    return {view.replica_id: (view.pull_from, view.pull_tokens) for view in found if view.pull_tokens}


def planned(
    views: Sequence[ReplicaView],
    held: dict[str, int],
    givers: Sequence[str] = ("a", "b", "c"),
    block_bytes: int = BLOCK_BYTES,
) -> list[ReplicaView]:
    """held: what they could give, by those that give."""
    views = [view._replace(given_tokens=held.get(view.replica_id, 0)) for view in views]
    return with_pulls(views, dict.fromkeys(givers, block_bytes), 16)


def test_the_fullest_gives_and_everybody_takes_what_it_lacks() -> None:
    views = (ReplicaView("a", 960), ReplicaView("b", 320), ReplicaView("c", 0))
    assert pulls(*views, held={"a": 960, "b": 320}) == {"b": ("a", 640), "c": ("a", 960)}


def test_what_is_only_expected_is_not_given() -> None:
    views = (ReplicaView("a", 960), ReplicaView("b", 0), ReplicaView("c", 0))
    assert pulls(*views, held={"a": 0}) == {}
    assert pulls(*views, held={"a": 480}) == {"b": ("a", 480), "c": ("a", 480)}


def test_of_equals_the_one_that_has_least_to_do_is_asked() -> None:
    views = (ReplicaView("a", 960, num_running=3), ReplicaView("b", 960), ReplicaView("c", 0))
    assert pulls(*views, held={"a": 960, "b": 960}) == {"c": ("b", 960)}


def test_who_gives_nothing_takes_nothing() -> None:
    views = (ReplicaView("a", 960), ReplicaView("b", 944), ReplicaView("c", 0))
    assert pulls(*views, held={"a": 960}, givers=("a", "b")) == {"b": ("a", 16)}


@pytest.mark.parametrize(("rate", "pulls_it"), [(1000.0, True), (50_000.0, False)])
def test_whether_little_is_pulled_is_told_by_its_price(rate: float, pulls_it: bool) -> None:
    """One block: 16 ms to compute at 1,000 tokens/s, and a transfer takes BEGIN_SECONDS to begin."""
    views = [ReplicaView(name, prefill_tokens_per_second=rate) for name in "abc"]
    views[0] = views[0]._replace(hit_tokens=960, num_running=9, queued_prefill_tokens=9000)
    views[1] = views[1]._replace(hit_tokens=944)
    choice = ExpectedFinishPolicy().choose(prompt(("p", 61)), planned(views, {"a": 960}), 0.0, Random(1))
    assert (choice.replica_id, choice.pulls) == ("b", pulls_it)


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 60e3 / 1e9), (2e6, 0.03)])
def test_it_takes_as_long_as_the_taker_has_measured(rate: float, seconds: float) -> None:
    views = (ReplicaView("a", 960), ReplicaView("b", 0, pull_bytes_per_second=rate))
    taker = planned(views, {"a": 960})[1]
    assert taker.pull_seconds == pytest.approx(BEGIN_SECONDS + seconds)


def test_who_gives_to_others_already_is_asked_last_and_gives_to_each_more_slowly() -> None:
    views = (ReplicaView("a", 960, num_pulls=2), ReplicaView("b", 0, pull_bytes_per_second=2e6))
    taker = planned(views, {"a": 960})[1]
    assert taker.pull_seconds == pytest.approx(BEGIN_SECONDS + 3 * 0.03)
    assert pulls(ReplicaView("a", 960, num_pulls=1), ReplicaView("b", 960), held={"a": 960, "b": 960}) == {}
    views = (ReplicaView("a", 960, num_pulls=1), ReplicaView("b", 960), ReplicaView("c", 0))
    assert pulls(*views, held={"a": 960, "b": 960}) == {"c": ("b", 960)}


def test_what_the_giver_has_to_restore_first_is_waited_for() -> None:
    views = (
        with_restoring(ReplicaView("a", 960), {"disk": 60}, 16, BLOCK_BYTES),
        with_restoring(ReplicaView("b", 960), {"host": 60}, 16, BLOCK_BYTES),
        ReplicaView("c", 0),
    )
    assert pulls(*views, held={"a": 960, "b": 960}) == {"c": ("b", 960)}
    found = planned(views[::2], {"a": 960})
    assert found[1].pull_seconds == pytest.approx(BEGIN_SECONDS + 60e3 / 1e9 + views[0].restore_seconds)


def test_each_tier_is_restored_as_fast_as_it_was_measured() -> None:
    view = ReplicaView("a", 960, host_bytes_per_second=1e6, disk_bytes_per_second=5e5)
    found = with_restoring(view, {"host": 20, "disk": 10}, 16, BLOCK_BYTES)
    assert (found.hit_tokens, found.host_tokens, found.disk_tokens) == (960, 320, 160)
    assert found.restore_seconds == pytest.approx(BEGIN_SECONDS + 0.02 + 0.02)


@pytest.mark.parametrize(
    ("room", "queued", "evicts"), [(60, 0, 0.0), (30, 0, 0.5), (60, 480, 0.5), (0, 0, 1.0), (10, 960, 1.0)]
)
def test_what_does_not_fit_behind_the_queue_makes_others_leave(room: int, queued: int, evicts: float) -> None:
    views = (ReplicaView("a", 960), ReplicaView("b", num_room_blocks=room, queued_prefill_tokens=queued))
    taker = planned(views, {"a": 960})[1]
    assert taker.pull_evicts == pytest.approx(evicts)


def test_a_giver_keeps_its_pages_for_as_long_as_it_computes_others() -> None:
    views = (
        ReplicaView("a", 960, prefill_tokens_per_second=500.0, num_blocks=100, num_room_blocks=25),
        ReplicaView("b"),
    )
    assert planned(views, {"a": 960}, block_bytes=1)[1].pull_lasts == pytest.approx(125 * 16 / 500)
    unknown = (ReplicaView("a", 960), ReplicaView("b"))
    assert planned(unknown, {"a": 960}, block_bytes=1)[1].pull_lasts == float("inf")
