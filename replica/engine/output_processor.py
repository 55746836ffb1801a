"""From logits to the text of answers: tokens, their logprobs, grammars, stops."""

from collections.abc import Sequence
from typing import Protocol

from replica.messages import FinishReason, GenerateRequest, TokenLogprobs
from replica.model.step_logits import StepLogits
from replica.request import Request
from replica.sampling.grammar_compiler import GrammarCompiler
from replica.sampling.logprobs import logprobs_of
from replica.sampling.sampler import Sampler
from replica.text.text_stream import TextStream

NextToken = tuple[Request, int | None, TokenLogprobs | None]
"""Whose token it is, the token, None where its logits are broken, and its logprobs where they were asked for."""


class Vocabulary(Protocol):
    """What the engine needs to know of tokens."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def grammars(self) -> GrammarCompiler: ...

    def text_stream(
        self, prompt_ids: Sequence[int], stop: Sequence[str], shown_token_ids: Sequence[int] = ()
    ) -> TextStream: ...


class OutputProcessor:
    """What is remembered of the answers of queued and running requests: `begin`, then tokens, then `forget`."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._sampler = Sampler(vocabulary.eos_token_ids)
        self._streams: dict[str, TextStream] = {}

    @property
    def is_empty(self) -> bool:
        return not self._streams and self._sampler.is_empty

    def prepare(self, message: GenerateRequest) -> None:
        """Does what `begin` would have to wait for; may be called from any thread. Raises RequestRefused."""
        if message.sampling.grammar is not None:
            self._vocabulary.grammars.prepare(message.sampling.grammar)

    def begin(self, message: GenerateRequest) -> None:
        """Raises RequestRefused, and remembers nothing then, where the request's grammar cannot be used."""
        if message.sampling.grammar is not None:
            matcher = self._vocabulary.grammars.matcher(message.sampling.grammar)
            self._sampler.grammars.begin(message.request_id, matcher)
        self._streams[message.request_id] = self._vocabulary.text_stream(
            message.token_ids, message.sampling.stop, message.sampling.shown_token_ids
        )

    def forget(self, request_id: str) -> None:
        self._sampler.forget(request_id)
        self._streams.pop(request_id, None)

    def sample(self, rows: StepLogits) -> list[NextToken]:
        """The next token of each request that samples in this step."""
        if not rows.sampling:
            return []
        logits, requests = rows.to_sample, rows.sampling
        tokens = self._sampler.sample(logits, requests)
        logprobs: dict[str, TokenLogprobs] = {}
        rows_with_logprobs = [row for row, request in enumerate(requests) if request.sampling.top_logprobs is not None]
        if rows_with_logprobs:
            num_top = [requests[row].sampling.top_logprobs or 0 for row in rows_with_logprobs]
            results = logprobs_of(logits[rows_with_logprobs], [tokens[row] or 0 for row in rows_with_logprobs], num_top)
            logprobs = {requests[row].id: result for row, result in zip(rows_with_logprobs, results, strict=True)}
        return [(request, token, logprobs.get(request.id)) for request, token in zip(requests, tokens, strict=True)]

    def read(self, request: Request, token_id: int) -> tuple[str, FinishReason | None]:
        """What the request's newest token makes visible, and why the request ends with it."""
        stream, sampling = self._streams[request.id], request.sampling
        is_complete = self._sampler.grammars.accept(request.id, token_id)
        is_eos = token_id in self._vocabulary.eos_token_ids and not sampling.ignore_eos
        if is_eos or token_id in sampling.stop_token_ids:
            return stream.flush(), FinishReason.STOP
        may_stop = request.num_generated_tokens > sampling.min_tokens
        text = stream.push(token_id, may_stop)
        if stream.stopped:
            return text, FinishReason.STOP
        is_full = request.num_tokens >= request.max_total_tokens
        if not (is_complete or is_full):
            return text, None
        text += stream.flush(may_stop)  # half a character at the end may complete a stop string
        return text, FinishReason.STOP if is_complete or stream.stopped else FinishReason.LENGTH
