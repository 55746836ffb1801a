"""Single decisions of the default policy in which its formula was once too coarse."""

from router.load.views import ReplicaView
from router.policies.registry import make_policy
from tests.router.policies.shapes import prompt, shares

POLICY = make_policy("expected_finish")


def busy(replica_id: str, running: int = 8, **fields: float) -> ReplicaView:
    return ReplicaView(
        replica_id,
        num_running=running,
        **{"prefill_tokens_per_second": 400.0, "decode_step_seconds": 0.1, **fields},  # type: ignore[arg-type]
    )


def test_a_queue_is_not_hidden_by_what_is_the_same_everywhere() -> None:
    """8 s of prefill, and delay for others many times that on each replica: 1.5 s of queue count all the same."""
    queued = busy("a", num_waiting=1, queued_prefill_tokens=600, running=7)
    fleet = [queued, busy("b", num_waiting=1), busy("c", num_waiting=1), busy("d", num_waiting=1)]
    assert shares(POLICY, prompt(tail=3200), fleet)["a"] == 0


def test_a_long_prompt_under_way_is_not_little_to_do() -> None:
    """One request with a long prompt against eight that only decode: a cold prompt does not queue behind it."""
    fleet = [busy("a", running=1, queued_prefill_tokens=2000), *(busy(name) for name in "bcd")]
    assert shares(POLICY, prompt(tail=2000), fleet)["a"] == 0


def test_who_waits_will_decode_beside_it() -> None:
    """No prefill is queued anywhere: ten that run are less than eight that run and eight that wait."""
    fleet = [busy("a", num_waiting=8), busy("b", running=10), busy("c", num_waiting=8), busy("d", num_waiting=8)]
    assert set(shares(POLICY, prompt(tail=40), fleet)) == {"b"}


def test_long_answers_do_not_tear_a_talk_from_its_pages() -> None:
    """Answers of 1,000 tokens: two more that decode beside it cost less than computing 300 tokens again."""
    fleet = [busy(name, answer_seconds=100.0) for name in "abcd"]
    fleet[0] = fleet[0]._replace(hit_tokens=304, num_running=10)
    assert set(shares(POLICY, prompt(("talk", 20), tail=8, new_tokens=1000), fleet)) == {"a"}
