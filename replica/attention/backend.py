"""What an attention backend is asked to do."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """How the flat batch of one step is cut into requests.

    Request i owns the queries `query_starts[i] : query_starts[i + 1]`; its last query sits at position
    `context_lens[i] - 1`, and its K/V lie in the pages `page_tables[i]` in token order (new tokens included).
    slots: [num_tokens] int64, where each new token's K/V goes: page * page_size + offset.
    """

    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    page_tables: tuple[torch.Tensor, ...]
    slots: torch.Tensor

    @property
    def num_requests(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """scaling: factor of the scores. sliding_window: a query sees that many newest tokens, itself included; None all.

    softcap: scores become softcap * tanh(score / softcap); None leaves them.
    """

    scaling: float
    sliding_window: int | None = None
    softcap: float | None = None


class AttentionBackend(ABC):
    """Causal attention of a ragged batch of queries over paged keys and values."""

    name: ClassVar[str]
    device_type: ClassVar[str | None] = None
    """The only type of device it runs on, "cpu" or "cuda"; None is any."""

    @classmethod
    @abstractmethod
    def unavailable_because(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why this backend cannot run here, or None where it can."""

    @classmethod
    @abstractmethod
    def page_size_multiple(cls) -> int:
        """A page must hold a multiple of so many tokens."""

    def key_borders(self) -> tuple[int, ...]:
        """Lengths of a context at which the computation takes another course; every probe crosses each."""
        return ()

    def row_borders(self) -> tuple[int, ...]:
        """The same of a step's rows."""
        return ()

    @abstractmethod
    def attend(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        layout: BatchLayout,
        options: LayerOptions,
    ) -> torch.Tensor:
        """query: [num_tokens, num_heads, head_dim]; pages: [num_pages, page_size, num_kv_heads, head_dim], each page
        contiguous and 64 bytes aligned, but any stride between pages (KVPages).

        The K/V of the new tokens are in the pages already. Returns [num_tokens, num_heads, value_head_dim].
        """
