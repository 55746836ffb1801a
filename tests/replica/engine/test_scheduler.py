"""Plans, without a model: what a step would compute, and for whom."""

import pytest

from cache.block_hasher import BlockHasher
from cache.kv_cache_manager import KVCacheManager
from replica.engine.scheduler import MAX_SHARE_WAITS, MAX_SKIPS, Scheduler
from replica.messages import GenerateRequest
from replica.plan import StepPlan
from replica.request import Request
from replica.sampling_params import SamplingParams

B = 4
HASHER = BlockHasher(bytes(16), "weights", B)


def scheduler(num_pages: int = 100, *, seqs: int = 8, budget: int = 32, watermark: int = 0) -> Scheduler:
    manager = KVCacheManager(num_pages, B)
    return Scheduler(manager, HASHER, max_num_seqs=seqs, max_num_batched_tokens=budget, watermark_pages=watermark)


def add(target: Scheduler, name: str, num_tokens: int, first: int = 0, priority: int = 0) -> Request:
    tokens = list(range(first, first + num_tokens))
    message = GenerateRequest(name, tokens, SamplingParams(), 0.0, priority=priority)
    request = Request(message, 10_000, HASHER.keys(tokens))
    target.add(request)
    return request


def step(target: Scheduler) -> dict[str, int]:
    """Plans and 'computes' one step; returns how many tokens each request got."""
    plan = target.schedule()
    finish(target, plan)
    return {item.request.id: item.num_tokens for item in plan.scheduled}


def finish(target: Scheduler, plan: StepPlan) -> None:
    sampling = [item.request for item in plan.scheduled if item.samples]
    target.commit(plan)
    for request in sampling:
        target.append_token(request, 1)
    target.manager.check_invariants()


def test_decodes_come_first_and_prefills_share_the_rest_of_the_budget() -> None:
    target = scheduler(budget=32)
    add(target, "first", 20)
    assert step(target) == {"first": 20}
    add(target, "long", 70, first=100)
    add(target, "late", 5, first=200)
    assert step(target) == {"first": 1, "long": 26, "late": 5}
    assert step(target) == {"first": 1, "long": 30, "late": 1}
    assert step(target) == {"first": 1, "long": 14, "late": 1}
    assert step(target) == {"first": 1, "long": 1, "late": 1}


def test_a_short_prompt_passes_a_long_one_that_is_being_computed() -> None:
    target = scheduler(budget=32)
    add(target, "long", 200)
    assert step(target) == {"long": 32}
    add(target, "short", 10, first=1000)
    assert step(target) == {"short": 10, "long": 22}


def test_a_long_prompt_is_passed_by_no_more_than_its_own_length() -> None:
    """Short ones come without end; a budget of 20 is theirs and 12 are left in each step until the long one's turn."""
    target = scheduler(num_pages=400, seqs=64, budget=32)
    long = add(target, "long", 120, first=5000)
    num_passed = 0
    for number in range(100):
        if not long.is_prefilling:
            break
        short = add(target, f"short {number}", 20, first=10_000 + 100 * number)
        num_passed += step(target).get(short.id, 0) == 20
        target.release(short)
    assert not long.is_prefilling
    assert 20 * num_passed <= 120


def test_a_lower_priority_number_is_served_first() -> None:
    target = scheduler(seqs=1)
    for name, priority in (("usual", 0), ("later", 5), ("sooner", -1), ("usual too", 0)):
        add(target, name, 4, first=100 * len(name), priority=priority)
    order = []
    while target.has_work:
        (name,) = step(target)
        order.append(name)
        target.release(target.running[0])
    assert order == ["sooner", "usual", "usual too", "later"]


def test_a24_the_newest_of_the_lowest_priority_is_preempted() -> None:
    target = scheduler(num_pages=9)
    low = add(target, "low", 11, first=100, priority=1)
    step(target)
    add(target, "high", 11)
    add(target, "high too", 11, first=200)
    step(target)
    plan = target.schedule()
    assert plan.preempted == [low]
    assert [item.request.id for item in plan.scheduled] == ["high", "high too"]
    finish(target, plan)


def test_no_more_run_at_once_than_allowed() -> None:
    target = scheduler(seqs=2)
    for number in range(3):
        add(target, f"{number}", 3, first=100 * number)
    assert set(step(target)) == {"0", "1"}
    target.release(target.running[0])
    assert set(step(target)) == {"1", "2"}


def test_49_admission_leaves_the_watermark_free() -> None:
    target = scheduler(num_pages=10, watermark=2)
    add(target, "first", 16)
    add(target, "second", 20, first=100)
    assert set(step(target)) == {"first"}
    add(target, "third", 12, first=200)
    assert set(step(target)) == {"first", "third"}


def test_a24_the_newest_is_preempted_and_comes_back_first() -> None:
    target = scheduler(num_pages=6)
    old, new = add(target, "old", 11), add(target, "new", 11, first=100)
    assert step(target) == {"old": 11, "new": 11}
    assert step(target) == {"old": 1, "new": 1}
    add(target, "waiting", 3, first=200)
    plan = target.schedule()
    assert plan.preempted == [new]
    assert [item.request for item in plan.scheduled] == [old]
    assert plan.admitted == []
    assert [request.id for request in target.waiting] == ["new", "waiting"]
    assert new.num_computed_tokens == 0
    finish(target, plan)


def test_a24_who_cannot_grow_and_is_the_newest_preempts_itself_once() -> None:
    target = scheduler(num_pages=6)
    add(target, "old", 8)
    new = add(target, "new", 12, first=100)
    step(target)
    assert target.manager.pool.num_free == 1
    assert step(target) == {"old": 1}
    assert (new.num_preemptions, target.num_preemptions) == (1, 1)


def test_a23_after_enough_skips_nobody_passes_any_more() -> None:
    target = scheduler(num_pages=40, seqs=8, budget=256)
    holder = add(target, "holder", 40)
    step(target)
    step(target)
    big = add(target, "big", 120, first=1000)
    for number in range(MAX_SKIPS - 1):
        small = add(target, f"small {number}", 2, first=2000 + 10 * number)
        assert small.id in step(target)
        target.release(small)
    assert big.num_skips == MAX_SKIPS - 1
    late = add(target, "late", 2, first=5000)
    assert late.id not in step(target)
    target.release(holder)
    assert {"big"} <= set(step(target))


def test_a12_a45_a_request_waits_for_its_prefix_a_bounded_number_of_steps() -> None:
    target = scheduler(num_pages=2000, budget=4)
    add(target, "owner", 4 * (MAX_SHARE_WAITS + 50))
    target.schedule()  # admitted, but its step is never committed: the owner hangs
    waiting = add(target, "waiting", 4 * (MAX_SHARE_WAITS + 50))
    target._max_num_batched_tokens = 1000
    for _ in range(MAX_SHARE_WAITS):
        assert "waiting" not in {item.request.id for item in target.schedule().scheduled}
    assert "waiting" in {item.request.id for item in target.schedule().scheduled}
    assert waiting.num_share_waits == MAX_SHARE_WAITS


def test_a12_nobody_waits_for_a_small_part() -> None:
    target = scheduler(budget=16)
    add(target, "owner", 30)
    target.schedule()
    tokens = [*range(8), *range(500, 540)]
    other = Request(GenerateRequest("other", tokens, SamplingParams(), 0.0), 10_000, HASHER.keys(tokens))
    target._max_num_batched_tokens = 64
    target.add(other)
    assert other in target.schedule().admitted


def test_queued_prefill_tokens_count_what_is_not_computed_yet() -> None:
    target = scheduler(budget=16)
    add(target, "running", 40)
    add(target, "waiting", 10, first=100)
    assert target.num_queued_prefill_tokens == 50
    step(target)
    assert target.num_queued_prefill_tokens == 34


@pytest.mark.parametrize("num_steps", range(4))
def test_a18_releasing_twice_is_harmless(num_steps: int) -> None:
    target = scheduler(budget=8)
    request = add(target, "one", 20)
    for _ in range(num_steps):
        step(target)
    target.release(request)
    target.release(request)
    assert (target.has_work, target.manager.pool.num_active) == (False, 0)


def test_a_prefix_is_queued_once_however_many_wait_for_it() -> None:
    """A sibling counts only its own tail, or routers would take the replica for full."""
    target = scheduler()
    siblings = [add(target, f"sibling {number}", 64 + 8 * number) for number in range(4)]
    assert target.num_queued_prefill_tokens == 64 + 3 * 8  # each holds all that those before it have
    for request in siblings:
        target.release(request)
    assert target.num_queued_prefill_tokens == 0
    add(target, "another", 64)
    assert target.num_queued_prefill_tokens == 64
    step(target)
    add(target, "behind", 72)  # the rest of the prefix is being computed
    assert target.num_queued_prefill_tokens == 32 + 72 - 64
