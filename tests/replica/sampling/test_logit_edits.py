"""Penalties, biases and min_tokens against their definitions, row by row."""

import math
from typing import Any

import pytest
import torch

from replica.messages import GenerateRequest
from replica.request import Request
from replica.sampling.logit_edits import LogitEdits
from replica.sampling.sampler import Sampler
from replica.sampling_params import SamplingParams

LOGITS = torch.tensor([2.0, -1.0, 0.5, 3.0, 0.0, -2.0])
PROMPT = [0, 1]


def request(request_id: str = "r", generated: tuple[int, ...] = (), **sampling: Any) -> Request:
    made = Request(GenerateRequest(request_id, list(PROMPT), SamplingParams(**sampling), 0.0), 100, [])
    made.token_ids += generated
    return made


def edited(who: Request, edits: LogitEdits | None = None) -> list[float]:
    return (edits or LogitEdits()).apply(LOGITS.unsqueeze(0), [who])[0].tolist()


def test_presence_and_frequency_penalties_count_generated_tokens_alone() -> None:
    who = request(generated=(3, 3, 2), presence_penalty=0.5, frequency_penalty=0.25)
    assert edited(who) == pytest.approx([2.0, -1.0, 0.5 - 0.75, 3.0 - 1.0, 0.0, -2.0])


def test_the_repetition_penalty_counts_the_prompt_too() -> None:
    """Positive logits are divided, negative ones multiplied."""
    assert edited(request(generated=(3,), repetition_penalty=2.0)) == pytest.approx([1.0, -2.0, 0.5, 1.5, 0.0, -2.0])
    assert edited(request(repetition_penalty=0.5))[:2] == pytest.approx([4.0, -0.5])


def test_penalties_follow_the_tokens_and_survive_a_preemption() -> None:
    """A preempted request keeps its tokens; another sampler, as after a restart of the count, tells the same."""
    who, edits = request(frequency_penalty=1.0), LogitEdits()
    for token_id in (4, 4, 2):
        edited(who, edits)
        who.token_ids.append(token_id)
    assert edited(who, edits) == edited(who) == pytest.approx([2.0, -1.0, -0.5, 3.0, -2.0, -2.0])
    edits.forget("r")
    assert edited(who, edits) == edited(who)


def test_a_bias_is_added() -> None:
    assert edited(request(logit_bias=((5, 100.0), (3, -100.0)))) == pytest.approx([2.0, -1.0, 0.5, -97.0, 0.0, 98.0])


def test_no_end_before_min_tokens() -> None:
    edits = LogitEdits(eos_token_ids=[3])
    short = request(min_tokens=2, stop_token_ids=(0,), generated=(4,))
    assert edited(short, edits) == [-math.inf, -1.0, 0.5, -math.inf, 0.0, -2.0]
    short.token_ids.append(4)
    assert edited(short, edits) == LOGITS.tolist()


def test_each_row_has_its_own_edits_and_the_given_logits_stay() -> None:
    rows = [
        request("a"),
        request("b", generated=(3,), presence_penalty=1.0),
        request("c", logit_bias=((1, 4.0),)),
        request("d", generated=(3,), repetition_penalty=3.0),
    ]
    logits = LOGITS.repeat(4, 1)
    together = LogitEdits().apply(logits, rows)
    assert torch.equal(logits, LOGITS.repeat(4, 1))
    assert [row.tolist() for row in together] == [edited(row) for row in rows]


def test_requests_without_edits_cost_nothing() -> None:
    """The very same tensor comes back, and nothing is kept."""
    edits = LogitEdits([3])
    logits = LOGITS.unsqueeze(0)
    assert edits.apply(logits, [request(temperature=0.7, top_p=0.5)]) is logits
    assert edits.is_empty


def test_a_bias_can_force_and_ban_tokens_when_sampling() -> None:
    sampler = Sampler()
    forced = request("forced", seed=1, logit_bias=((5, 100.0),))
    banned = request("banned", seed=2, logit_bias=((3, -100.0),))
    drawn = [sampler.sample(LOGITS.repeat(2, 1), [forced, banned]) for _ in range(50)]
    assert {row[0] for row in drawn} == {5}
    assert 3 not in {row[1] for row in drawn}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan), ("presence_penalty", 2.1), ("presence_penalty", math.nan),
        ("frequency_penalty", -2.1), ("repetition_penalty", 0.0), ("repetition_penalty", math.inf),
        ("logit_bias", ((1, 101.0),)), ("logit_bias", ((1, math.nan),)), ("min_tokens", -1), ("top_logprobs", 21),
        ("top_logprobs", -1), ("prompt_logprobs", True), ("max_tokens", -1),
    ],
)  # fmt: skip
def test_18_values_out_of_bounds_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})


def test_min_tokens_must_not_exceed_max_tokens() -> None:
    with pytest.raises(ValueError, match="min_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)
