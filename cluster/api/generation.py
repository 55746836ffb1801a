"""One HTTP request after validation: what goes to the engines and how the answer is to be written."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.api.answer_format import AnswerFormat, AnswerHead, FinishedText
from cluster.api.engine_call import EngineCall
from cluster.api.failures import from_chunk
from cluster.api.responses import AnswerReason
from replica.messages import FinishReason, GenerateRequest, TokenChunk, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """requests: one per choice; the choice's index is prompt * choices_per_prompt + number (37)."""

    head: AnswerHead
    format: AnswerFormat
    requests: Sequence[GenerateRequest]
    choices_per_prompt: int
    stream: bool
    include_usage: bool


def usage_of(chunk: TokenChunk) -> Usage:
    """The last chunk's usage. Raises ApiError when the chunk ends the choice with an error."""
    error = from_chunk(chunk)
    if error is not None:
        raise error
    return chunk.usage or Usage(0, 0, 0)


def whole_choice(chunks: Sequence[TokenChunk]) -> tuple[FinishedText, Usage]:
    """Text, finish reason and usage of one finished choice. Raises ApiError when it ended with an error."""
    last = chunks[-1]
    usage = usage_of(last)
    reason: AnswerReason = "length" if last.finish_reason is FinishReason.LENGTH else "stop"
    return ("".join(chunk.text for chunk in chunks), reason), usage


def route_headers(calls: Sequence[EngineCall]) -> dict[str, str]:
    """Where the first choice went, for tests and for people who tune routing."""
    decision = next((call.decision for call in calls if call.decision is not None), None)
    if decision is None:
        return {}
    return {
        "x-warmlane-replica": decision.replica_id,
        "x-warmlane-decision-outcome": str(decision.outcome),
        "x-warmlane-predicted-hit-tokens": str(decision.predicted_hit_tokens),
    }
