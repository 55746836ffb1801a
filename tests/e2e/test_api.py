"""What the API promises, through HAProxy, Ray and a real model."""

import json
from collections.abc import Callable
from typing import Any

import openai

from tests.e2e.cluster_client import ClusterClient

SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 20}, "is_large": {"type": "boolean"}},
    "required": ["capital", "is_large"],
    "additionalProperties": False,
}


def test_resetting_the_cache_empties_replicas_and_index_together(
    cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    prompt = unseen_prompt(100)
    for _ in range(2):
        warm = cluster.complete(prompt, max_tokens=1)
    assert (warm.cached_tokens, warm.predicted_hit_tokens) == (96, 96)
    response = cluster.http.post("/admin/reset_prefix_cache")
    assert response.status_code == 200, response.text
    assert len(response.json()["num_forgotten_blocks"]) == 2
    cold = cluster.complete(prompt, max_tokens=1)
    assert (cold.cached_tokens, cold.predicted_hit_tokens) == (0, 0)
    assert cluster.complete(prompt, max_tokens=1).cached_tokens == 96


def test_the_sdk_gets_structured_output_and_a_tool_call(cluster: ClusterClient) -> None:
    messages: Any = [{"role": "user", "content": "What is the capital of France? Is it large?"}]
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
    tools: Any = [{"type": "function", "function": {"name": "tell_capital", "strict": True, "parameters": SCHEMA}}]
    with openai.OpenAI(base_url=f"{cluster.base_url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=cluster.model, messages=messages, response_format=response_format, max_tokens=64, temperature=0
        )
        assert set(json.loads(answer.choices[0].message.content or "")) == {"capital", "is_large"}
        answer = client.chat.completions.create(
            model=cluster.model, messages=messages, tools=tools, tool_choice="required", parallel_tool_calls=False,
            max_tokens=100, temperature=0,
        )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert set(json.loads(call.function.arguments)) == {"capital", "is_large"}
    assert answer.choices[0].finish_reason == "tool_calls"
