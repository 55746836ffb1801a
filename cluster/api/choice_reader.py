"""What is written of one choice, from the chunks that its engine sends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.api.logprobs_format import LogprobsFormat
from cluster.api.responses import AnswerReason
from cluster.api.tool_calls import ToolCallDelta, ToolCallParser
from replica.messages import FinishReason, TokenChunk

_REASONS: dict[FinishReason, AnswerReason] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class Delta:
    """What became visible of a choice: one event of a stream, or the whole of an answer that is not streamed."""

    text: str
    finish_reason: AnswerReason | None = None
    logprobs: dict[str, Any] | None = None
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


class ChoiceReader:
    """Fed with all chunks at once or one by one, it gives the same text and the same calls (A40).

    Logprobs of tokens whose text is still held back (half a character, the beginning of a stop string or of a call)
    wait for it.
    """

    def __init__(
        self,
        prefix: str = "",
        logprobs: LogprobsFormat | None = None,
        tool_calls: ToolCallParser | None = None,
        tells_of_calls: bool = True,
    ):
        """prefix: the echoed prompt. tool_calls: where the answer may hold some.

        tells_of_calls: the finish reason of an answer with calls says so; else it is "stop", as the official API has
        it where the client named the function.
        """
        self._prefix = prefix
        self._logprobs = logprobs
        self._tool_calls = tool_calls
        self._tells_of_calls = tells_of_calls

    def read(self, chunks: Sequence[TokenChunk]) -> Delta | None:
        """None where nothing is to be written yet. The last chunk must not be a failure."""
        if self._logprobs is not None:
            for chunk in chunks:
                self._logprobs.add(chunk)
        text = "".join(chunk.text for chunk in chunks)
        last = chunks[-1].finish_reason
        reason = None if last is None else _REASONS[last]
        calls: list[ToolCallDelta] = []
        if self._tool_calls is not None:
            parsed = self._tool_calls.feed(text, final=reason is not None, is_cut=reason == "length")
            text, calls = parsed.content, parsed.calls
            if reason == "stop" and self._tool_calls.num_calls and self._tells_of_calls:
                reason = "tool_calls"
        if not text and not calls and reason is None:
            return None
        text, self._prefix = self._prefix + text, ""
        logprobs = self._logprobs.take() if self._logprobs is not None else None
        return Delta(text, reason, logprobs, calls)
