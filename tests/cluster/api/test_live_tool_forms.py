"""Calls in every form from a real engine, over HTTP: prompt, grammar and reader speak the template's form."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from tests.cluster.api.live_server import LiveServer, running_server
from tests.cluster.openai_schema import check
from tests.cluster.text.small_tokenizer import write_small_tokenizer
from tests.cluster.text.tool_templates import TEMPLATES

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "note": {"type": "string", "maxLength": 8},
    },
    "required": ["city", "days", "note"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Tells.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop_all"}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
MARKS = (
    "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
)  # fmt: skip
MESSAGES = [{"role": "user", "content": "weather?"}]


@pytest.fixture(scope="module", params=TEMPLATES)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose tokenizer has the marks of these models as special tokens, and Qwen's as ordinary ones."""
    folder: Path = write_small_tokenizer(tmp_path_factory.mktemp("tool-form"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in ("<tool_call>", "</tool_call>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": TEMPLATES[request.param][0]}))
    with running_server(folder) as server:
        yield server


def streamed(live: LiveServer, **body: Any) -> tuple[str, list[dict[str, str]], str]:
    """Content, calls and finish reason, put together as a client does."""
    chunks = live.events("/v1/chat/completions", messages=MESSAGES, **body)
    content, calls, reason = "", [], ""
    for chunk in chunks:
        check("CreateChatCompletionStreamResponse", chunk)
        choice = chunk["choices"][0]
        content += choice["delta"].get("content") or ""
        reason = choice["finish_reason"] or reason
        for piece in choice["delta"].get("tool_calls", ()):
            if "id" in piece:
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
    return content, calls, reason


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_calls_are_whole_streamed_and_right(live: LiveServer, choice: Any) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0, "max_tokens": 200}
    answer = live.post("/v1/chat/completions", messages=MESSAGES, **fields)
    check("CreateChatCompletionResponse", answer)
    message, reason = answer["choices"][0]["message"], answer["choices"][0]["finish_reason"]
    assert message["content"] is None
    functions = [call["function"] for call in message["tool_calls"]]
    assert len(functions) == 1
    assert reason == ("stop" if choice is NAMED else "tool_calls")
    arguments = json.loads(functions[0]["arguments"])
    if functions[0]["name"] == "stop_all":
        assert choice == "required" and arguments == {}
    else:
        assert set(arguments) == {"city", "days", "note"}
        assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9 and len(arguments["note"]) <= 8
    assert streamed(live, **fields) == ("", functions, reason)
    # And what was called goes back as history.
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain"}
    history = [*MESSAGES, message, result]
    live.post("/v1/chat/completions", messages=history, tools=TOOLS, max_tokens=2)
