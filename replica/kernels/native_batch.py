"""A step's layout in the form that the C kernels read."""

import ctypes

import torch

from replica.attention.backend import BatchLayout
from replica.kernels import structs


class NativeBatch:
    """Owns the arrays that its `struct` points to."""

    def __init__(self, layout: BatchLayout, page_size: int):
        lengths = [table.numel() for table in layout.page_tables]
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        self._arrays = torch.tensor([*layout.query_starts, *layout.context_lens, *starts], dtype=torch.int64)
        self._tables = torch.cat(layout.page_tables)
        base = self._arrays.data_ptr()
        num = layout.num_requests
        self.struct = structs.Batch(
            query_starts=base,
            context_lens=base + 8 * (num + 1),
            tables=self._tables.data_ptr(),
            table_starts=base + 8 * (2 * num + 1),
            num_requests=num,
            page_size=page_size,
        )

    @property
    def pointer(self) -> "ctypes._Pointer[structs.Batch]":
        return ctypes.pointer(self.struct)
