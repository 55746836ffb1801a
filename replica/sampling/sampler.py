"""Draws the next token of each request of a step."""

import secrets
from collections.abc import Collection, Sequence
from hashlib import blake2b

import torch

from replica.request import Request
from replica.sampling.grammar_masks import GrammarMasks
from replica.sampling.logit_edits import LogitEdits
from replica.sampling.token_filters import keep_min_p, keep_top_k, keep_top_p

_BYTES = 6


class RandomStream:
    """Uniform numbers that depend on the seed and on how many were drawn, and on nothing else.

    Hashed and not generated from hidden state, so a stream costs nothing to keep, goes on where it was after a
    preemption, and is the same on every device and in any batch (35).
    """

    def __init__(self, seed: int | None):
        """seed: a 64-bit integer; None draws one."""
        number = secrets.randbits(63) if seed is None else seed
        self._key = number.to_bytes(8, "little", signed=True)
        self._num_drawn = 0

    def next(self) -> float:
        """The next number in [0, 1): a multiple of 2**-48, so that its product with any float64 stays below that."""
        digest = blake2b(self._num_drawn.to_bytes(8, "little"), key=self._key, digest_size=_BYTES).digest()
        self._num_drawn += 1
        return int.from_bytes(digest, "little") / 2.0 ** (8 * _BYTES)


class Sampler:
    """Greedy rows by argmax, the others by temperature, top-k, top-p and min-p over the whole batch at once.

    Each request has a random stream of its own, so what it draws depends on its seed alone and not on its neighbours,
    and goes on where it was after a preemption.
    """

    def __init__(self, eos_token_ids: Collection[int] = ()):
        """eos_token_ids: what must not come before a request's `min_tokens`."""
        self.grammars = GrammarMasks()
        self._edits = LogitEdits(eos_token_ids)
        self._streams: dict[str, RandomStream] = {}

    @property
    def is_empty(self) -> bool:
        """Nothing is kept of any request."""
        return not self._streams and self._edits.is_empty and self.grammars.is_empty

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[int | None]:
        """logits: [num_requests, vocabulary]. Returns a token id per row; None where the logits are not finite (18).

        -inf is a token that must not come; a row of nothing else has no answer either.
        """
        logits = self.grammars.apply(self._edits.apply(logits, requests), requests)
        tokens = _argmax(logits)
        rows = [row for row, request in enumerate(requests) if not request.sampling.greedy]
        if rows:
            chosen = [requests[row] for row in rows]
            tokens[rows] = self._draw(logits[rows].float(), chosen).to(tokens.device)
        usable = logits.amax(dim=-1).isfinite().tolist()  # amax hands NaN on
        return [token if good else None for token, good in zip(tokens.tolist(), usable, strict=True)]

    def _draw(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        params = [request.sampling for request in requests]
        # Below the largest logit nothing overflows, however low the temperature.
        logits = logits - logits.amax(dim=-1, keepdim=True)
        logits = logits / torch.tensor([each.temperature for each in params], device=logits.device).unsqueeze(1)
        logits = keep_top_k(logits, [each.top_k for each in params])
        probs = torch.softmax(logits, dim=-1)
        probs = keep_min_p(probs, [each.min_p for each in params])
        probs = keep_top_p(probs, [each.top_p for each in params])
        # The token in whose stretch of the summed probabilities a uniform number falls.
        sums = probs.double().nan_to_num_(0.0).cumsum(dim=-1)
        numbers = torch.tensor([self._uniform(request) for request in requests], dtype=torch.double)
        targets = numbers.to(sums.device).unsqueeze(1) * sums[:, -1:]
        return torch.searchsorted(sums, targets, right=True).squeeze(1).clamp_max_(probs.shape[-1] - 1)

    def _uniform(self, request: Request) -> float:
        stream = self._streams.get(request.id)
        if stream is None:
            stream = self._streams[request.id] = RandomStream(request.sampling.seed)
        return stream.next()

    def forget(self, request_id: str) -> None:
        self.grammars.forget(request_id)
        self._edits.forget(request_id)
        self._streams.pop(request_id, None)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The first of the largest logits per row. NumPy's is ten times as fast as torch's on a CPU: 0.04 against 0.39 ms
    for 8 rows of 49,152."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)
