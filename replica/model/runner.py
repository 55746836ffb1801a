"""Runs one step's forward pass."""

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from replica.attention.backend import AttentionBackend, BatchLayout
from replica.attention.paged_step import PagedStep
from replica.attention.pages import KVPages
from replica.model.probe import cache_argument
from replica.plan import ScheduledRequest, StepPlan

BlockTableOf = Callable[[str], Sequence[int]]


class ModelRunner:
    """Turns a plan into one flat batch [1, num_tokens], and the model's output into logits of the sampling requests."""

    def __init__(self, model: PreTrainedModel, pages: KVPages, backend: AttentionBackend):
        self._model = model
        self._pages = pages
        self._backend = backend
        self._cache_argument = cache_argument(model)

    @torch.inference_mode()
    def run(self, plan: StepPlan, block_table_of: BlockTableOf) -> torch.Tensor:
        """Returns [number of sampling requests, vocabulary], in the order of the plan."""
        self._pages.copy(plan.copies)
        device = self._model.device
        layout = self._layout(plan.scheduled, block_table_of)
        token_ids, positions, last_rows = _flat_batch(plan.scheduled)
        step = PagedStep(self._pages, layout, self._backend)
        output = self._model(
            input_ids=torch.tensor([token_ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            # Logits are computed only for rows that are sampled: the LM head is the largest layer of a small model.
            logits_to_keep=torch.tensor(last_rows, dtype=torch.long, device=device),
            paged_step=step,
            **{self._cache_argument: step},
        )
        return output.logits[0]

    def _layout(self, scheduled: Sequence[ScheduledRequest], block_table_of: BlockTableOf) -> BatchLayout:
        """Two tensors are made per step, not several per request: at 256 requests that was half of a step's Python."""
        page_size = self._pages.page_size
        starts, context_lens, num_pages = [0], [], []
        page_ids: list[int] = []
        slots: list[int] = []
        for item in scheduled:
            end = item.start + item.num_tokens
            table = block_table_of(item.request.id)
            num_pages.append(-(-end // page_size))
            page_ids += table[: num_pages[-1]]
            slots += [table[at // page_size] * page_size + at % page_size for at in range(item.start, end)]
            context_lens.append(end)
            starts.append(starts[-1] + item.num_tokens)
        device = self._model.device
        tables = torch.tensor(page_ids, device=device).split(num_pages)
        return BatchLayout(tuple(starts), tuple(context_lens), tables, torch.tensor(slots, device=device))


def _flat_batch(scheduled: Sequence[ScheduledRequest]) -> tuple[list[int], list[int], list[int]]:
    """Token ids and positions of all requests one after another, and the rows whose logits are wanted."""
    token_ids: list[int] = []
    positions: list[int] = []
    last_rows: list[int] = []
    for item in scheduled:
        end = item.start + item.num_tokens
        token_ids += item.request.token_ids[item.start : end]
        positions += range(item.start, end)
        last_rows += range(len(token_ids) - item.num_logit_rows, len(token_ids))
    return token_ids, positions, last_rows
