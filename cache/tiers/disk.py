"""A bounded folder of pages that survives restarts: a thread of its own writes, any thread reads."""

import threading
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

from cache.block_hasher import BlockKey
from cache.tiers.disk_folder import OUR_OWN_LACK
from cache.tiers.disk_format import FaultCause, PageFault, PageFormat
from cache.tiers.disk_queue import Pace
from cache.tiers.disk_state import DiskCounts, DiskState
from cache.tiers.disk_writer import DiskWriter, OnChange

CLOSE_SECONDS = 5.0  # for what the writer is doing at the moment


def tell_nobody(stored: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
    pass


class DiskTier:
    """Pages by the key of their last block. What the disk does wrong is a miss, a count and one warning."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        page_bytes: int,
        identity: bytes,
        *,
        write_bytes_per_second: float,
        on_change: OnChange = tell_nobody,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
    ):
        """folder: of one model. Each process takes a sub-folder of its own; what lies there from before is found again
        beside everything else. max_bytes: of that sub-folder, everything included.

        identity: of what makes equal block keys mean equal bytes: the weights, the layout, the KV dtype.
        on_change: told by the writer which block keys can be read now and which cannot any longer; one call after the
        other, each change once. It may be slow at the cost of the writer, and must not call `close`.
        background: False where nothing is written before somebody calls `work`.
        Raises ValueError for bounds. A folder that cannot be had is only a warning, and tried again.
        """
        if page_bytes < 1:
            raise ValueError(f"page_bytes must be at least 1, got {page_bytes}")
        if not write_bytes_per_second > 0:
            raise ValueError(f"write_bytes_per_second must be above 0, got {write_bytes_per_second}")
        pace = Pace(write_bytes_per_second, clock)
        self._state = DiskState(PageFormat(identity, page_bytes), max_bytes, pace, clock)
        if max_bytes < self._state.smallest_bytes:
            raise ValueError(f"max_bytes must be at least {self._state.smallest_bytes} for one page, got {max_bytes}")
        self._writer = DiskWriter(folder, self._state, on_change)
        try:
            self._writer.open()
        except OSError as error:
            self._writer.failed(error)
        self._thread = threading.Thread(target=self._writer.run, name="disk-tier", daemon=True) if background else None
        if self._thread is not None:
            self._thread.start()

    @property
    def max_bytes(self) -> int:
        return self._state.max_bytes

    @property
    def num_pages(self) -> int:
        return len(self._state.index)

    @property
    def num_bytes(self) -> int:
        """What the sub-folder takes on disk: pages, files that are to be removed, directories."""
        return self._state.used_bytes

    @property
    def is_loaded(self) -> bool:
        """Whether everything that lay in the folder at the start can be found by now."""
        return self._state.is_loaded

    @property
    def counts(self) -> DiskCounts:
        """A copy."""
        with self._state.lock:
            return deepcopy(self._state.counts)

    def work(self) -> float | None:
        """What the thread does, without one: everything that can be done now. Returns seconds until there is more."""
        return self._writer.work()

    def offer(self, block_keys: Sequence[BlockKey], blob: memoryview | bytearray | bytes) -> bool:
        """Copies the page and leaves it to the writer, or refuses; never waits for the disk, never raises.

        block_keys: of all blocks of the page in order. blob: `page_bytes` bytes, free to change after the call.
        """
        state, page, view = self._state, tuple(block_keys), _flat(blob)
        with state.lock:
            refusal = state.refusal(page, view)
            if refusal is not None or view is None:
                state.counts.refused[refusal or "malformed"] += 1
                return False
            state.queue.put(page, view)  # under the lock, for a copy keeps Python's own lock anyway
            state.stir()
            return True

    def is_busy(self) -> bool:
        """Whether as much as may wait for the writer does. An offer would be refused."""
        return self._state.queue.is_full

    def find(self, key: BlockKey) -> bool:
        """Whether the page whose last block this is can be read now."""
        return key in self._state.index

    def block_keys(self) -> list[BlockKey]:
        """All blocks of all pages that can be read now."""
        with self._state.lock:
            return self._state.index.block_keys()

    def read_into(self, key: BlockKey, target: memoryview | bytearray) -> bool:
        """False is a miss, and then the target's bytes mean nothing. Any thread; waits for the disk; never raises."""
        state, view = self._state, _flat(target)
        with state.lock:
            page, folder, generation, stamp = state.index.get(key), state.folder, state.generation, state.stamp()
        if page is None or folder is None:
            return False
        if view is None or view.readonly or len(view) != state.format.page_bytes:
            return False
        cause: FaultCause | None = None
        may_be_fine = False
        try:
            folder.read(key, page, view, stamp)
        except PageFault as fault:
            cause = fault.cause
        except OSError as error:
            cause, may_be_fine = "io", error.errno in OUR_OWN_LACK
        with state.lock:
            is_here = state.index.get(key) is page  # else it was evicted or cleared meanwhile
            if cause is None:
                if is_here:
                    state.index.touch(key)
                if is_read := generation == state.generation:
                    state.counts.read_pages += 1
                    state.counts.read_bytes += len(view)
                return is_read
            if is_here:
                state.counts.failures[cause] += 1
                if not may_be_fine:
                    state.forget(key)
                    state.doomed.append(key)
                    state.stir()
            return False

    def clear(self) -> None:
        """Nothing that was offered before can be found afterwards, also not by a process that starts later."""
        state = self._state
        with state.placing:
            with state.lock:
                state.generation += 1
                state.queue.clear()
                state.forget_all()
                folder = state.folder
                if folder is not None and not state.has_files:
                    return  # a folder set aside takes room, too, and clears may come faster than they are removed
                state.must_set_aside = state.must_remove_set_aside = True
                state.stir()
            if folder is not None:
                try:
                    self._writer.set_aside(folder)
                except OSError as error:  # the writer tries again
                    self._writer.failed(error)

    def close(self, seconds: float = 0.0) -> None:
        """Writes what waits, for so many seconds at most, and gives the folder back. Then everything is a miss."""
        state = self._state
        with state.lock:
            state.closing = True
            if seconds <= 0:
                state.queue.clear()
            state.stir()
        if self._thread is None:
            self._writer.work()
        else:
            self._thread.join(seconds)
            with state.lock:
                state.queue.clear()
                state.stir()
            self._thread.join(CLOSE_SECONDS)
        with state.lock:
            state.index.clear()
            folder, state.folder = state.folder, None
        if folder is not None and (self._thread is None or not self._thread.is_alive()):
            folder.release()


def _flat(buffer: memoryview | bytearray | bytes) -> memoryview | None:
    """Its bytes in a row; None where they do not lie so."""
    try:
        return memoryview(buffer).cast("B")
    except TypeError:
        return None
