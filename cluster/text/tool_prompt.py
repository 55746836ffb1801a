"""Writes tools and their calls into plain messages, for models whose chat template does not know them.

The functions stand in the system message between `<tools>` tags, with what a call looks like. Where the template writes
no calls either, they are those of Hermes, and a result comes as a user's message between `<tool_response>` tags.
"""

import json
from collections.abc import Sequence
from typing import Any

from cluster.text.tool_forms.form import ToolForm
from cluster.text.tool_forms.known_forms import HERMES

Message = dict[str, Any]

_INTRODUCTION = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
_INSTRUCTION = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
_OTHER_INSTRUCTION = "\n</tools>\n\nTo call a function, write this, with its name and its arguments:\n"
_EXAMPLE = ("function-name", {"argument-name": "argument-value"})


def plain_messages(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
    """The same conversation in messages of text only."""
    written: list[Message] = []
    results: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(written, results, message)
        elif message.get("tool_calls"):
            written.append(_with_calls(message))
        else:
            written.append(message)
    return with_tools_as_text(written, tools, HERMES)


def with_tools_as_text(messages: Sequence[Message], tools: Sequence[dict[str, Any]], form: ToolForm) -> list[Message]:
    """The tools and the form of their calls stand in the system message; calls and results stay as they are."""
    written = list(messages)
    if not tools:
        return written
    instruction = _INSTRUCTION if form.name == HERMES.name else _OTHER_INSTRUCTION + form.write([_EXAMPLE])
    text = _INTRODUCTION + "\n".join(_dump(tool) for tool in tools) + instruction
    if written[0]["role"] == "system":
        written[0] = {**written[0], "content": f"{written[0]['content']}\n\n{text}"}
    else:
        written.insert(0, {"role": "system", "content": text})
    return written


def _add_result(written: list[Message], results: list[Message], message: Message) -> None:
    """Results that follow each other share one message, because many templates want roles to alternate.

    results: the messages that hold results so far, the last of them perhaps the last of `written`.
    """
    text = f"<tool_response>\n{message['content']}\n</tool_response>"
    if results and written[-1] is results[-1]:
        results[-1]["content"] += "\n" + text
        return
    results.append({"role": "user", "content": text})
    written.append(results[-1])


def _with_calls(message: Message) -> Message:
    calls = [call.get("function") or {} for call in message["tool_calls"]]
    texts = [_dump({"name": call.get("name"), "arguments": call.get("arguments", {})}) for call in calls]
    blocks = [f"<tool_call>\n{text}\n</tool_call>" for text in texts]
    return {
        "role": message["role"],
        "content": "\n".join([message["content"], *blocks] if message["content"] else blocks),
    }


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
