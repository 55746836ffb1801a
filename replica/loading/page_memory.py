"""The pool's pages as bytes, for whoever moves them."""

import numpy as np
import torch

from cache.tiers.host import Blob
from replica.attention.pages import KVPages


class PageMemory:
    """Any thread may call it; who holds the page decides what may be done with it."""

    def __init__(self, pages: KVPages):
        self._pages = pages
        self._is_cpu = pages.blob(0).device.type == "cpu"

    @property
    def page_bytes(self) -> int:
        return self._pages.page_bytes

    def bytes_of(self, page_id: int) -> Blob:
        """[page_bytes]: on a CPU the memory itself, else a copy of it."""
        blob = self._pages.blob(page_id)
        return np.asarray(blob if self._is_cpu else blob.cpu())

    def write(self, page_id: int, blob: Blob) -> None:
        """Returns when the page holds it."""
        if self._is_cpu:
            np.copyto(self.bytes_of(page_id), blob)  # without the lock of Python
        else:
            self._pages.blob(page_id).copy_(torch.from_numpy(blob))
            torch.cuda.current_stream().synchronize()
