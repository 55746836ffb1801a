"""Paged attention in C for CPUs: reads K and V where they lie, any page size, fp32."""

import ctypes
from typing import ClassVar

import torch

from replica.attention.backend import AttentionBackend, BatchLayout, LayerOptions
from replica.kernels import structs
from replica.kernels.native_batch import NativeBatch
from replica.kernels.native_library import kernel_constants, load_native, native_unavailable_because


class NativeAttention(AttentionBackend):
    """A query's result has the same bits in every batch, chunking and page size (csrc/attention.c)."""

    name: ClassVar[str] = "native"
    device_type: ClassVar[str | None] = "cpu"

    def __init__(self) -> None:
        self._library = load_native()
        self._memory = torch.empty(0)
        self._layout: BatchLayout | None = None
        self._batch: NativeBatch | None = None

    @classmethod
    def unavailable_because(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cpu":
            return f"it runs on CPUs, not on {device.type}"
        if dtype != torch.float32:
            return f"it computes in float32, not in {str(dtype).removeprefix('torch.')}"
        return native_unavailable_because()

    @classmethod
    def page_size_multiple(cls) -> int:
        return 1

    def key_borders(self) -> tuple[int, ...]:
        return tuple(kernel_constants()["keys"].values())

    def row_borders(self) -> tuple[int, ...]:
        return tuple(kernel_constants()["rows"].values())

    def attend(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        layout: BatchLayout,
        options: LayerOptions,
    ) -> torch.Tensor:
        query = query.contiguous()
        num_heads, key_dim = query.shape[1:]
        output = query.new_empty(query.shape[0], num_heads, value_pages.shape[-1])
        layer = structs.AttentionLayer(
            keys=key_pages.data_ptr(),
            values=value_pages.data_ptr(),
            key_page_stride=key_pages.stride(0),
            value_page_stride=value_pages.stride(0),
            heads=num_heads,
            kv_heads=key_pages.shape[2],
            key_dim=key_dim,
            value_dim=value_pages.shape[-1],
            query_stride=num_heads * key_dim,
            window=options.sliding_window or 0,
            scaling=options.scaling,
            softcap=options.softcap or 0.0,
        )
        batch = self._batch_of(layout, key_pages.shape[1])
        threads = torch.get_num_threads()
        num_scratch = threads * self._library.attention_scratch_floats(ctypes.byref(layer))
        num_partial = self._library.attention_partial_floats(ctypes.byref(layer), ctypes.byref(batch.struct))
        if self._memory.numel() < num_scratch + num_partial:
            self._memory = torch.empty(num_scratch + num_partial)
        self._library.run_attention(
            ctypes.byref(layer),
            ctypes.byref(batch.struct),
            query.data_ptr(),
            output.data_ptr(),
            self._memory.data_ptr(),
            self._memory.data_ptr() + 4 * num_scratch,
            threads,
        )
        return output

    def _batch_of(self, layout: BatchLayout, page_size: int) -> NativeBatch:
        """Built once per step: every layer hands over the same layout."""
        if self._batch is None or self._layout is not layout or self._batch.struct.page_size != page_size:
            self._layout, self._batch = layout, NativeBatch(layout, page_size)
        return self._batch
