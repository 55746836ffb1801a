"""What one engine step computes."""

from dataclasses import dataclass, field

from cache.kv_cache_manager import PageCopy
from replica.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """`num_tokens` tokens of `request` from position `start` on; a token is sampled where they reach its end."""

    request: Request
    start: int
    num_tokens: int

    @property
    def samples(self) -> bool:
        return self.start + self.num_tokens == self.request.num_tokens

    @property
    def num_prompt_rows(self) -> int:
        """Positions at the end of this chunk whose logits tell how likely the prompt's next token was."""
        request = self.request
        if not request.wants_prompt_logprobs:
            return 0
        end = min(self.start + self.num_tokens, request.num_prompt_tokens - 1)
        return max(0, end - max(self.start, len(request.prompt_logprobs)))

    @property
    def num_logit_rows(self) -> int:
        """The last so many rows of this chunk need logits: those of the prompt's tokens and the one to sample from."""
        return self.num_prompt_rows + self.samples


@dataclass(slots=True)
class StepPlan:
    """scheduled: what is computed. copies: done before that. admitted: requests that got their pages in this step;
    loading: those of them whose content begins to come from elsewhere."""

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    loading: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def add(self, request: Request, num_tokens: int) -> None:
        self.scheduled.append(ScheduledRequest(request, request.num_computed_tokens, num_tokens))

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)

    @property
    def num_decodes(self) -> int:
        return sum(1 for item in self.scheduled if item.samples and item.num_tokens == 1)
