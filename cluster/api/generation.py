"""One HTTP request after validation: what goes to the engines and how the answer is to be written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.api.answer_format import AnswerFormat, AnswerHead
from cluster.api.choice_reader import ChoiceReader, Delta
from cluster.api.engine_call import EngineCall
from cluster.api.failures import from_chunk
from replica.messages import GenerateRequest, TokenChunk, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """requests: one per choice; the choice's index is prompt * choices_per_prompt + number (37).

    reader_of: a fresh reader for the choice of that index.
    """

    head: AnswerHead
    format: AnswerFormat
    requests: Sequence[GenerateRequest]
    reader_of: Callable[[int], ChoiceReader]
    choices_per_prompt: int
    stream: bool
    include_usage: bool


def usage_of(chunk: TokenChunk) -> Usage:
    """The last chunk's usage. Raises ApiError when the chunk ends the choice with an error."""
    error = from_chunk(chunk)
    if error is not None:
        raise error
    return chunk.usage or Usage(0, 0, 0)


def whole_choice(chunks: Sequence[TokenChunk], reader: ChoiceReader) -> tuple[Delta, Usage]:
    """All of one finished choice and its usage. Raises ApiError when it ended with an error."""
    usage = usage_of(chunks[-1])
    return reader.read(chunks) or Delta(""), usage


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
