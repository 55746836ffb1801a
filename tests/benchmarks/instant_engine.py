"""Stands in for the model in `bench_http` alone: its tokens are written down, so that only serving them costs time."""

import time
from types import SimpleNamespace

from replica.messages import FinishReason, GenerateRequest, TokenChunk, Usage

WORD = "word "


class InstantEngine:
    """What `AsyncEngine` drives, without a model: each step gives every request one token, at once.

    A request's priority is the time of a step in milliseconds, because the API hands that number through unread.
    """

    def __init__(self) -> None:
        self.counters = SimpleNamespace(num_failed_steps=0)
        self._left: dict[str, int] = {}
        self._requests: dict[str, GenerateRequest] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def num_uncached_tokens(self, request: GenerateRequest) -> int:
        return len(request.token_ids)

    def add(self, request: GenerateRequest) -> None:
        self._requests[request.request_id] = request
        self._left[request.request_id] = request.sampling.max_tokens or 1

    def abort(self, request_id: str) -> TokenChunk | None:
        if self._left.pop(request_id, None) is None:
            return None
        del self._requests[request_id]
        return TokenChunk(request_id, finish_reason=FinishReason.ABORT)

    def step(self) -> list[TokenChunk]:
        time.sleep(min(request.priority for request in self._requests.values()) / 1000)
        return [self._next_chunk(request) for request in list(self._requests.values())]

    def _next_chunk(self, request: GenerateRequest) -> TokenChunk:
        self._left[request.request_id] -= 1
        if self._left[request.request_id]:
            return TokenChunk(request.request_id, text=WORD, token_ids=[1])
        del self._left[request.request_id], self._requests[request.request_id]
        usage = Usage(len(request.token_ids), request.sampling.max_tokens or 1, 0)
        return TokenChunk(request.request_id, text=WORD, token_ids=[1], finish_reason=FinishReason.LENGTH, usage=usage)
