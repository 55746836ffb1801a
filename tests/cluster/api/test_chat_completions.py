"""Whole answers of `/v1/chat/completions`."""

import pytest

from replica.messages import FinishReason
from tests.cluster.api.conftest import Api
from tests.cluster.openai_schema import check
from tests.cluster.scripted_engine import say


async def test_answer_has_the_official_form(api: Api) -> None:
    response = await api.chat()
    answer = response.json()
    check("CreateChatCompletionResponse", answer)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}  # the key is required (33b)
    assert choice["logprobs"] is None
    assert choice["finish_reason"] == "stop"
    assert answer["model"] == "small"


async def test_the_answer_says_where_it_was_computed(api: Api) -> None:
    headers = (await api.chat()).headers
    assert headers["x-warmlane-replica"] == "replica-a"
    assert headers["x-warmlane-decision-outcome"] == "warm"
    assert headers["x-warmlane-predicted-hit-tokens"] == "32"


@pytest.mark.parametrize("cached_tokens", [0, 16])
async def test_31_a28_cached_tokens_are_an_integer_even_when_none(api: Api, cached_tokens: int) -> None:
    api.engine.script = say("a", cached_tokens=cached_tokens)
    for response in (await api.chat(), await api.complete()):
        assert response.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": cached_tokens}


async def test_33_finish_reason_is_the_engines(api: Api) -> None:
    api.engine.script = say("a", reason=FinishReason.LENGTH)
    assert (await api.chat()).json()["choices"][0]["finish_reason"] == "length"


async def test_33_ids_are_unique(api: Api) -> None:
    ids = {(await api.chat()).json()["id"] for _ in range(5)}
    assert len(ids) == 5


async def test_sampling_fields_reach_the_engine(api: Api) -> None:
    await api.chat(
        temperature=0.5, top_p=0.9, top_k=7, seed=3, stop=["x", "yz"], max_tokens=9, ignore_eos=True, stop_token_ids=[5]
    )
    sampling = api.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 7, 3)
    assert sampling.stop == ("x", "yz")
    assert sampling.stop_token_ids == (5,)
    assert sampling.max_tokens == 9
    assert sampling.ignore_eos


async def test_fields_left_out_are_the_official_defaults(api: Api) -> None:
    await api.chat(temperature=None, top_p=None, n=None, stop=None, seed=None, max_tokens=None, stream=None)
    request = api.engine.requests[0]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (1.0, 1.0, None)
    assert request.sampling.stop == ()
    assert request.sampling.max_tokens == 256 - len(request.token_ids)  # the rest of the window


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_limit_work(api: Api, name: str) -> None:
    await api.chat(**{name: 5})
    assert api.engine.requests[0].sampling.max_tokens == 5


async def test_35_choices_of_one_seeded_request_draw_differently(api: Api) -> None:
    answer = (await api.chat(n=3, seed=2**63 - 1)).json()
    check("CreateChatCompletionResponse", answer)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({request.sampling.seed for request in api.engine.requests}) == 3
    assert len({request.request_id for request in api.engine.requests}) == 3


async def test_a_prompt_counts_once_however_many_choices_it_has(api: Api) -> None:
    usage = (await api.chat(n=3)).json()["usage"]
    assert usage["prompt_tokens"] == len(api.engine.requests[0].token_ids)
    assert usage["completion_tokens"] == 6
    assert usage["total_tokens"] == usage["prompt_tokens"] + 6


async def test_20_text_parts_are_joined_by_newlines(api: Api) -> None:
    await api.chat([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])
    await api.chat("one\ntwo")
    assert api.engine.requests[0].token_ids == api.engine.requests[1].token_ids


async def test_developer_messages_take_the_place_of_system_ones(api: Api) -> None:
    for role in ("developer", "system"):
        messages = [{"role": role, "content": "be brief"}, {"role": "user", "content": "hi"}]
        await api.client.post("/v1/chat/completions", json={"model": "small", "messages": messages})
    assert api.engine.requests[0].token_ids == api.engine.requests[1].token_ids


async def test_cache_salt_is_part_of_the_content_keys(api: Api) -> None:
    await api.chat(cache_salt="tenant-1")
    assert api.engine.requests[0].extra_keys.cache_salt == "tenant-1"


@pytest.mark.parametrize(
    "harmless",
    [
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"store": False},
        {"tools": []},
        {"logprobs": False},
        {"response_format": {"type": "text"}},
        {"frequency_penalty": 0.0},
        {"logit_bias": {}},
        {"request_id": "mine"},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_fields_that_ask_for_nothing_are_accepted(api: Api, harmless: dict) -> None:
    response = await api.chat(**harmless)
    assert response.status_code == 200
    assert "mine" not in api.engine.requests[0].request_id  # what a client names is no id of ours (39)
