"""Has the system give memory before it is needed: who writes to fresh memory waits until that is there."""

import ctypes
import mmap
import threading
from collections.abc import Callable

AHEAD_BYTES = 256 * 2**20
"""Some long prompts."""
PART_BYTES = 2**20
"""Asked for at once: meanwhile nobody else in the process can map memory."""
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14: as if written to, and leaves what is there as it is

Populate = Callable[[int, int], bool]


class MemoryAhead:
    """Memory that is used from its beginning on, `AHEAD_BYTES` of which are there before they are used. The rest is
    only addresses until then. One thread calls `used`; others, which end soon, have the system give memory."""

    def __init__(self, num_bytes: int, populate: Populate, ahead_bytes: int = AHEAD_BYTES):
        """populate: of so many bytes from an offset on; False where the system cannot."""
        self._num_bytes = num_bytes
        self._populate = populate
        self._ahead_bytes = ahead_bytes
        self._asked = 0
        self._thread: threading.Thread | None = None
        self.used(0)

    def used(self, end: int) -> None:
        """Of the bytes before `end` some are written to now."""
        if end + self._ahead_bytes // 2 <= self._asked or self._asked >= self._num_bytes:
            return
        first, self._asked = self._asked, min(self._num_bytes, max(end, self._asked) + self._ahead_bytes)
        self._thread = threading.Thread(target=self._ask, args=(first, self._asked, self._thread), daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Returns when all that was asked for is there."""
        if self._thread is not None:
            self._thread.join()

    def _ask(self, first: int, end: int, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        for start in range(first, end, PART_BYTES):
            if not self._populate(start, min(PART_BYTES, end - start)):
                return


def populate_of(memory: mmap.mmap) -> Populate:
    """Where the system cannot, memory comes as it is written to, and nothing else changes."""
    libc = ctypes.CDLL(None, use_errno=True)  # unlike `mmap.madvise` it lets the interpreter go on
    first_byte = ctypes.c_char.from_buffer(memory)  # the memory stays as long as this does

    def populate(start: int, num_bytes: int) -> bool:
        shift = start % mmap.PAGESIZE
        address = ctypes.c_void_p(ctypes.addressof(first_byte) + start - shift)
        return bool(libc.madvise(address, ctypes.c_size_t(num_bytes + shift), _POPULATE_WRITE) == 0)

    return populate
