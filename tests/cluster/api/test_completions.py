"""Answers of `/v1/completions`: the four forms of a prompt and the order of choices."""

from collections.abc import Iterator
from typing import Any

import pytest

from replica.messages import FinishReason, GenerateRequest, TokenChunk, Usage
from tests.cluster.api.conftest import Api
from tests.cluster.api.sse import events
from tests.cluster.openai_schema import check


async def test_answer_has_the_official_form(api: Api) -> None:
    answer = (await api.complete("hello")).json()
    check("CreateCompletionResponse", answer)
    assert answer["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}]


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [([5, 6, 7], [[5, 6, 7]]), ([[5, 6], [7]], [[5, 6], [7]])],
)
async def test_token_ids_reach_the_engine_as_they_are(api: Api, prompt: Any, token_ids: list[list[int]]) -> None:
    assert (await api.complete(prompt)).status_code == 200
    assert [request.token_ids for request in api.engine.requests] == token_ids


async def test_texts_are_tokenised_one_by_one(api: Api) -> None:
    await api.complete(["hello", "world", "hello"])
    first, second, third = (request.token_ids for request in api.engine.requests)
    assert first == third != second


def _by_length(request: GenerateRequest) -> Iterator[TokenChunk]:
    """Longer prompts take longer; the text tells which request it was."""
    for number in range(len(request.token_ids)):
        yield TokenChunk(request.request_id, text=f"{len(request.token_ids)}" if number == 0 else "", token_ids=[1])
    usage = Usage(len(request.token_ids), len(request.token_ids), 0)
    yield TokenChunk(request.request_id, finish_reason=FinishReason.LENGTH, usage=usage)


@pytest.mark.parametrize("stream", [False, True])
async def test_37_index_is_prompt_times_n_plus_choice(api: Api, stream: bool) -> None:
    api.engine.script = _by_length
    response = await api.complete([[1] * 40, [1] * 2, [1] * 9], n=2, stream=stream)
    if stream:
        texts = [""] * 6
        for event in events(response.text)[0]:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
    else:
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(6))
        texts = [choice["text"] for choice in choices]
        assert response.json()["usage"]["prompt_tokens"] == 51
    assert texts == ["40", "40", "2", "2", "9", "9"]


async def test_control_tokens_in_a_plain_prompt_are_meant(api: Api) -> None:
    await api.complete("<|im_start|>user\nhello<|im_end|>")
    ids = api.engine.requests[0].token_ids
    assert (ids[0], ids[-1]) == (1, 2)
