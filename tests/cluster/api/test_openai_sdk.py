"""The official Python SDK against the API: sync, async, streaming, tools, structured output, errors."""

import json
from collections.abc import AsyncIterator, Iterator
from enum import Enum
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.cluster.api.live_server import MODEL, LiveServer

MESSAGES: Any = [{"role": "user", "content": "hello world"}]


class City(Enum):
    OSLO = "Oslo"
    ROME = "Rome"


class Trip(BaseModel):
    city: City
    by_train: bool


class GetWeather(BaseModel):
    """Tells the weather."""

    city: City


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(live: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=8, temperature=0, logprobs=True, top_logprobs=2,
        frequency_penalty=0.1, presence_penalty=0.1, logit_bias={"65": 1}, seed=1, user="u", n=2,
    )  # fmt: skip
    assert len(answer.choices) == 2
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content[0].top_logprobs) == 2


def test_chat_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="hello", echo=True, logprobs=1, max_tokens=0)
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs is not None
    stream = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=3, stream=True)
    assert {choice.index for chunk in stream for choice in chunk.choices} == {0, 1}


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Trip, max_tokens=60)
    assert isinstance(answer.choices[0].message.parsed, Trip)


def test_structured_output_streamed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=Trip, max_tokens=60) as stream:
        answer = stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, Trip)


def test_tools_are_parsed(client: openai.OpenAI) -> None:
    tools = [openai.pydantic_function_tool(GetWeather)]
    fields: Any = {
        "tools": tools,
        "tool_choice": {"type": "function", "function": {"name": "GetWeather"}},
        "parallel_tool_calls": False,
        "max_tokens": 100,
    }
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, **fields)
    (call,) = answer.choices[0].message.tool_calls or ()
    assert isinstance(call.function.parsed_arguments, GetWeather)
    assert answer.choices[0].finish_reason == "stop"  # so at OpenAI, where the function was named
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, **fields) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    (call,) = final.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    # The conversation goes on with the call and its result, as the SDK writes them.
    messages = [
        *MESSAGES,
        final.choices[0].message.model_dump(mode="json", exclude_none=True, exclude={"parsed"}),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    assert client.chat.completions.create(model=MODEL, messages=messages, tools=tools, max_tokens=2).choices


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as info:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a " * 3000}])
    assert info.value.code == "context_length_exceeded"
    assert info.value.param == "messages"


async def test_async(async_client: openai.AsyncOpenAI) -> None:
    answer = await async_client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4, temperature=0)
    stream = await async_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=4, temperature=0, stream=True
    )
    parts = [choice.delta.content or "" async for chunk in stream for choice in chunk.choices]
    assert "".join(parts) == answer.choices[0].message.content
