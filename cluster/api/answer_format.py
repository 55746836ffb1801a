"""How an answer is written, for chat and for completions: whole, and as server-sent events.

Events are cut from a text that is serialised once per request: a chunk costs one `json.dumps` of its own text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.api.choice_reader import Delta
from cluster.api.errors import one_line
from cluster.api.responses import (
    AssistantMessage,
    CalledFunction,
    CallingMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionUsage,
    TextChoice,
    ToolCall,
)
from cluster.api.tool_calls import ToolCallDelta

DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What all chunks of one answer share. id: unique per request, equal in all chunks (33)."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def open_event(self, object_name: str) -> str:
        fields = {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
        return one_line("data: " + _dump(fields)[:-1])


class AnswerFormat(Protocol):
    id_prefix: str

    def whole(self, head: AnswerHead, choices: Sequence[Delta], usage: CompletionUsage) -> bytes:
        """The body of an answer that is not streamed."""

    def event_writer(self, head: AnswerHead, include_usage: bool) -> "EventWriter":
        """Writes the events of one streamed answer."""


class EventWriter:
    """Server-sent events of one answer; this one writes those of completions."""

    def __init__(self, head: AnswerHead, object_name: str, usage_is_null: bool):
        """usage_is_null: where usage comes at the end, the schema wants `usage: null` in all events before it (32)."""
        self._start = head.open_event(object_name)
        self._end = ',"usage":null}\n\n' if usage_is_null else "}\n\n"

    def event(self, index: int, delta: Delta, first: bool) -> bytes:
        """What is new of one choice. first: nothing was sent of this choice before."""
        reason = "null" if delta.finish_reason is None else f'"{delta.finish_reason}"'
        logprobs = "null" if delta.logprobs is None else _dump(delta.logprobs)
        choice = f'{{"index":{index},{self._body(delta, first)},"logprobs":{logprobs},"finish_reason":{reason}}}'
        return one_line(f'{self._start},"choices":[{choice}]{self._end}').encode()

    def usage_event(self, usage: CompletionUsage) -> bytes:
        return f'{self._start},"choices":[],"usage":{usage.model_dump_json()}}}\n\n'.encode()

    def _body(self, delta: Delta, first: bool) -> str:
        return '"text":' + _dump(delta.text)


class ChatEventWriter(EventWriter):
    def _body(self, delta: Delta, first: bool) -> str:
        fields = ['"role":"assistant"'] if first else []
        if delta.text or (first and not delta.tool_calls):
            fields.append('"content":' + _dump(delta.text))
        elif first:
            fields.append('"content":null')
        if first:
            fields.append('"refusal":null')
        if delta.tool_calls:
            fields.append('"tool_calls":' + _dump([_call_piece(call) for call in delta.tool_calls]))
        return f'"delta":{{{",".join(fields)}}}'


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _call_piece(call: ToolCallDelta) -> dict[str, Any]:
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _message(delta: Delta) -> AssistantMessage:
    if not delta.tool_calls:
        return AssistantMessage(content=delta.text)
    calls = [
        ToolCall(id=call.id or "", function=CalledFunction(name=call.name or "", arguments=call.arguments))
        for call in delta.tool_calls
    ]
    return CallingMessage(content=delta.text or None, tool_calls=calls)


class ChatFormat:
    id_prefix = "chatcmpl-"

    def whole(self, head: AnswerHead, choices: Sequence[Delta], usage: CompletionUsage) -> bytes:
        written = [
            ChatChoice(
                index=index,
                message=_message(delta),
                logprobs=delta.logprobs,
                finish_reason=delta.finish_reason or "stop",
            )
            for index, delta in enumerate(choices)
        ]
        answer = ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=written,
            usage=usage,
        )
        return answer.model_dump_json().encode()

    def event_writer(self, head: AnswerHead, include_usage: bool) -> EventWriter:
        return ChatEventWriter(head, "chat.completion.chunk", usage_is_null=include_usage)


class CompletionFormat:
    id_prefix = "cmpl-"

    def whole(self, head: AnswerHead, choices: Sequence[Delta], usage: CompletionUsage) -> bytes:
        written = [
            TextChoice(
                index=index, text=delta.text, logprobs=delta.logprobs, finish_reason=delta.finish_reason or "stop"
            )
            for index, delta in enumerate(choices)
        ]
        answer = Completion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=written,
            usage=usage,
        )
        return answer.model_dump_json().encode()

    def event_writer(self, head: AnswerHead, include_usage: bool) -> EventWriter:
        return EventWriter(head, "text_completion", usage_is_null=include_usage)
