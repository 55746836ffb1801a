"""Which rows of a step's logits belong to whom."""

from collections.abc import Sequence

import torch

from replica.plan import ScheduledRequest, StepPlan
from replica.request import Request
from replica.sampling.logprobs import logprobs_of


class StepLogits:
    """Splits the runner's rows into those to sample from, one per request of `sampling`, and those of prompt tokens."""

    def __init__(self, plan: StepPlan, logits: torch.Tensor):
        """logits: [sum of num_logit_rows, vocabulary], in the order of the plan."""
        self.sampling: list[Request] = [item.request for item in plan.scheduled if item.samples]
        self._logits = logits
        self._prompts: list[tuple[ScheduledRequest, int, int]] = []
        self._sample_rows: list[int] = []
        end = 0
        for item in plan.scheduled:
            start, end = end, end + item.num_logit_rows
            if item.num_prompt_rows:
                self._prompts.append((item, start, start + item.num_prompt_rows))
            if item.samples:
                self._sample_rows.append(end - 1)

    @property
    def to_sample(self) -> torch.Tensor:
        """[requests that sample, vocabulary]"""
        return self._logits[self._sample_rows] if self._prompts else self._logits

    def keep_prompt_logprobs(self) -> None:
        """Adds to each request's `prompt_logprobs` what this step computed of its prompt."""
        for item, start, end in self._prompts:
            request = item.request
            first = len(request.prompt_logprobs) + 1
            token_ids: Sequence[int] = request.token_ids[first : first + end - start]
            num_top = [request.sampling.top_logprobs or 0] * len(token_ids)
            request.prompt_logprobs += logprobs_of(self._logits[start:end], token_ids, num_top)
