"""What an engine refuses at its door: what it can never serve, and what it cannot serve now."""

from dataclasses import dataclass

from replica.engine.scheduler import Scheduler
from replica.errors import EngineOverloaded, RequestRefused
from replica.messages import GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionChecks:
    """window, pool_tokens: tokens of prompt and answer together that the model and the KV pool allow.

    max_waiting_requests, max_waiting_tokens: beyond these a request is to try another replica.
    """

    vocab_size: int
    window: int
    pool_tokens: int
    max_waiting_requests: int
    max_waiting_tokens: int

    @property
    def longest_request_tokens(self) -> int:
        return min(self.window, self.pool_tokens)

    def max_total_tokens(self, message: GenerateRequest) -> int:
        """The most tokens that prompt and answer may have together. Raises RequestRefused for what would block the
        queue for ever, or kill the loop (A22, A39)."""
        num_prompt, max_tokens = len(message.token_ids), message.sampling.max_tokens
        if not num_prompt:
            raise RequestRefused("the prompt has no tokens; at least 1 is needed", param="prompt")
        self._check_token_ids(message)
        longest = num_prompt + (1 if max_tokens is None else max_tokens)
        for bound, what in (
            (self.window, "the model's context length"),
            (self.pool_tokens, "this replica's KV cache"),
        ):
            if longest > bound:
                raise RequestRefused(
                    f"the prompt has {num_prompt} tokens and max_tokens is {max_tokens}, but {what} is {bound} tokens",
                    param="max_tokens" if num_prompt < bound else "prompt",
                    code="context_length_exceeded",
                )
        return longest if max_tokens is not None else self.longest_request_tokens

    def _check_token_ids(self, message: GenerateRequest) -> None:
        """Ids outside the vocabulary would write into a neighbour's logits or kill the engine's loop (19)."""
        for param, token_ids in (
            ("prompt", message.token_ids),
            ("stop_token_ids", message.sampling.stop_token_ids),
            ("shown_token_ids", message.sampling.shown_token_ids),
            ("logit_bias", [token_id for token_id, _ in message.sampling.logit_bias]),
        ):
            bad = next((i for i in token_ids if not 0 <= i < self.vocab_size), None)
            if bad is not None:
                raise RequestRefused(f"token id {bad} is not in the vocabulary of {self.vocab_size}", param=param)

    def check_queue(self, scheduler: Scheduler, num_prompt_tokens: int) -> None:
        """Raises EngineOverloaded where too much waits already (53)."""
        waiting = scheduler.waiting
        if len(waiting) >= self.max_waiting_requests:
            raise EngineOverloaded(f"{len(waiting)} requests wait already, the bound is {self.max_waiting_requests}")
        queued = scheduler.num_queued_prefill_tokens
        if waiting and queued + num_prompt_tokens > self.max_waiting_tokens:
            raise EngineOverloaded(f"{queued} tokens wait already, the bound is {self.max_waiting_tokens}")
