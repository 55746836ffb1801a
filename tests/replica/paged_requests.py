"""A forward pass driven by hand: which tokens of which requests each step computes is up to the test."""

from typing import Any

import torch
from transformers import PreTrainedModel

from replica.attention.backend import AttentionBackend, BatchLayout
from replica.attention.paged_step import PagedStep
from replica.attention.pages import KVPages
from replica.kernels.native_backend import NativeAttention
from replica.model.fast_path import Forward
from replica.model.probe import cache_argument, witness_layers


class Requests:
    """Token sequences computed through pages in steps of any shape; `logits[i]` grows with what request i has got."""

    def __init__(
        self,
        forward: Forward,
        model: PreTrainedModel,
        prompts: list[list[int]],
        page_size: int,
        backend: AttentionBackend | None = None,
    ):
        shapes = witness_layers(model, model.config.get_text_config().vocab_size)
        self._backend = backend or NativeAttention()
        length = -(-max(map(len, prompts)) // page_size)
        self._pages = KVPages(shapes, len(prompts) * length, page_size, torch.float32, torch.device("cpu"))
        order = torch.randperm(len(prompts) * length, generator=torch.Generator().manual_seed(len(prompts)))
        self._tables = order.view(len(prompts), length)
        self._forward = forward
        self._prompts = [torch.tensor(prompt) for prompt in prompts]
        self.logits: list[list[torch.Tensor]] = [[] for _ in prompts]
        self.num_computed = [0] * len(prompts)

    def step(self, num_tokens: dict[int, int]) -> None:
        """Computes the next so many tokens of each named request in one flat batch."""
        starts, ends, ids, positions, slots = [0], [], [], [], []
        size = self._pages.page_size
        for which, num in num_tokens.items():
            position = torch.arange(self.num_computed[which], self.num_computed[which] + num)
            ids.append(self._prompts[which][position])
            positions.append(position)
            slots.append(self._tables[which][position // size] * size + position % size)
            self.num_computed[which] += num
            starts.append(starts[-1] + num)
            ends.append(self.num_computed[which])
        layout = BatchLayout(
            tuple(starts), tuple(ends), tuple(self._tables[which] for which in num_tokens), torch.cat(slots)
        )
        step = PagedStep(self._pages, layout, self._backend)
        arguments: dict[str, Any] = {cache_argument(self._forward): step, "paged_step": step}
        with torch.inference_mode():
            output = self._forward(
                input_ids=torch.cat(ids).unsqueeze(0), position_ids=torch.cat(positions).unsqueeze(0), **arguments
            )
        for index, which in enumerate(num_tokens):
            self.logits[which] += list(output.logits[0, starts[index] : starts[index + 1]])
