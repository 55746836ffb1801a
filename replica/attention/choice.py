"""Picks the attention backend."""

import logging
from math import lcm

import torch

from replica.attention.backend import AttentionBackend
from replica.attention.torch_backend import TorchAttention

logger = logging.getLogger(__name__)

BACKENDS: dict[str, type[AttentionBackend]] = {backend.name: backend for backend in (TorchAttention,)}
"""Fastest first: "auto" takes the first that can run."""


def choose_backend(
    name: str, device: torch.device, dtype: torch.dtype, block_size: int, page_size: int | None = None
) -> tuple[AttentionBackend, int]:
    """The backend, and the tokens of a page: the given ones, else the smallest multiple of a block that it takes.

    Raises ValueError with the reason where the named backend cannot run here, or is not known.
    """
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"attention_backend must be auto or one of {', '.join(BACKENDS)}, got {name!r}")
    for backend in BACKENDS.values() if name == "auto" else (BACKENDS[name],):
        reason = backend.unavailable_because(device, dtype)
        multiple = backend.page_size_multiple()
        if reason is None and page_size is not None and page_size % multiple:
            reason = f"it needs pages of a multiple of {multiple} tokens, and page_size is {page_size}"
        if reason is None:
            return backend(), page_size or lcm(block_size, multiple)
        if name != "auto":
            raise ValueError(f"attention_backend {name} cannot be used: {reason}")
        logger.info("attention backend %s is not used: %s", backend.name, reason)
    raise ValueError("no attention backend can run here")
