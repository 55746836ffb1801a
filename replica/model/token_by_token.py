"""A model's own forward pass, one token at a time: slow, and the same bits in every batch."""

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from replica.attention.backend import BatchLayout
from replica.attention.paged_step import PagedStep
from replica.model.probe import cache_argument


class TokenByToken:
    """Called as the model is. Every product has one row, so no library picks another order of sums for more of them,
    and attention sees one query over a context whose length is the token's position.

    The number of torch threads must stay as it is: products may be cut by it.
    """

    def __init__(self, model: PreTrainedModel):
        self._model = model
        self._cache_argument = cache_argument(model)
        self.device, self.dtype = model.device, model.dtype

    def __call__(self, *args: Any, **kwargs: Any) -> CausalLMOutputWithPast:
        return self.forward(*args, **kwargs)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        paged_step: PagedStep,
        logits_to_keep: torch.Tensor | None = None,
        past_key_values: PagedStep | None = None,
    ) -> CausalLMOutputWithPast:
        """input_ids, position_ids: [1, num_tokens]. logits_to_keep: rows whose logits are wanted, None for all.

        Returns logits [1, number of kept rows, vocabulary].
        """
        wanted = set(range(input_ids.shape[1]) if logits_to_keep is None else logits_to_keep.tolist())
        logits: list[torch.Tensor] = []
        for request, table in enumerate(paged_step.layout.page_tables):
            start, end = paged_step.layout.query_starts[request : request + 2]
            for row in range(start, end):
                context_len = paged_step.layout.context_lens[request] - (end - 1 - row)
                alone = BatchLayout((0, 1), (context_len,), (table,), paged_step.layout.slots[row : row + 1])
                step = paged_step.with_layout(alone)
                arguments: dict[str, Any] = {self._cache_argument: step, "paged_step": step}
                output = self._model(
                    input_ids=input_ids[:, row : row + 1],
                    position_ids=position_ids[:, row : row + 1],
                    logits_to_keep=torch.arange(int(row in wanted), device=self.device),
                    **arguments,
                )
                logits.append(output.logits)
        return CausalLMOutputWithPast(logits=torch.cat(logits, dim=1))
