"""The batch's layout in the form that varlen kernels on GPUs take."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch.nn.utils.rnn import pad_sequence

from replica.attention.backend import BatchLayout


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """All int32 on the device. query_starts, key_starts: [num_requests + 1]. context_lens: [num_requests].

    page_tables: [num_requests, most pages of a request], filled up with page 0, which is never read there.
    """

    query_starts: torch.Tensor
    key_starts: torch.Tensor
    context_lens: torch.Tensor
    page_tables: torch.Tensor
    max_queries: int
    max_context: int

    @classmethod
    def of(cls, layout: BatchLayout) -> "DeviceLayout":
        device = layout.slots.device

        def tensor(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        starts = layout.query_starts
        return cls(
            query_starts=tensor(list(starts)),
            key_starts=tensor(list(accumulate(layout.context_lens, initial=0))),
            context_lens=tensor(list(layout.context_lens)),
            page_tables=pad_sequence(list(layout.page_tables), batch_first=True).to(torch.int32),
            max_queries=max(end - start for start, end in pairwise(starts)),
            max_context=max(layout.context_lens),
        )


class LayoutCache:
    """Every layer of a step hands over the same layout; it is moved to the device once."""

    def __init__(self) -> None:
        self._layout: BatchLayout | None = None
        self._device_layout: DeviceLayout | None = None

    def get(self, layout: BatchLayout) -> DeviceLayout:
        if self._device_layout is None or self._layout is not layout:
            self._layout, self._device_layout = layout, DeviceLayout.of(layout)
        return self._device_layout
