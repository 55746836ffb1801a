"""How an answer is written, for chat and for completions: whole, and as server-sent events.

Events are cut from a text that is serialised once per request: a chunk costs one `json.dumps` of its own text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.api.responses import (
    AnswerReason,
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionUsage,
    TextChoice,
)

FinishedText = tuple[str, AnswerReason]
"""One choice: its text and why it ended."""

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
        return "data: " + json.dumps(fields, ensure_ascii=False, separators=(",", ":"))[:-1]


class AnswerFormat(Protocol):
    id_prefix: str

    def whole(self, head: AnswerHead, choices: Sequence[FinishedText], usage: CompletionUsage) -> bytes:
        """The body of an answer that is not streamed."""

    def event_writer(self, head: AnswerHead, include_usage: bool) -> "EventWriter":
        """Writes the events of one streamed answer."""


class EventWriter:
    """Server-sent events of one answer; this one writes those of completions."""

    def __init__(self, head: AnswerHead, object_name: str, usage_is_null: bool = False):
        """usage_is_null: the chat schema wants `usage: null` in all events before the one with usage (32)."""
        self._start = head.open_event(object_name)
        self._end = ',"usage":null}\n\n' if usage_is_null else "}\n\n"

    def event(self, index: int, text: str, finish_reason: str | None, first: bool) -> bytes:
        """One choice's new text. first: nothing was sent of this choice before."""
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        choice = f'{{"index":{index},{self._body(text, first)},"logprobs":null,"finish_reason":{reason}}}'
        return f'{self._start},"choices":[{choice}]{self._end}'.encode()

    def usage_event(self, usage: CompletionUsage) -> bytes:
        return f'{self._start},"choices":[],"usage":{usage.model_dump_json()}}}\n\n'.encode()

    def _body(self, text: str, first: bool) -> str:
        return '"text":' + json.dumps(text, ensure_ascii=False)


class ChatEventWriter(EventWriter):
    def _body(self, text: str, first: bool) -> str:
        content = '"content":' + json.dumps(text, ensure_ascii=False)
        if first:
            return f'"delta":{{"role":"assistant",{content},"refusal":null}}'
        return f'"delta":{{{content}}}' if text else '"delta":{}'


class ChatFormat:
    id_prefix = "chatcmpl-"

    def whole(self, head: AnswerHead, choices: Sequence[FinishedText], usage: CompletionUsage) -> bytes:
        written = [
            ChatChoice(index=index, message=AssistantMessage(content=text), finish_reason=reason)
            for index, (text, reason) in enumerate(choices)
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

    def whole(self, head: AnswerHead, choices: Sequence[FinishedText], usage: CompletionUsage) -> bytes:
        written = [
            TextChoice(index=index, text=text, finish_reason=reason) for index, (text, reason) in enumerate(choices)
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
        return EventWriter(head, "text_completion")
