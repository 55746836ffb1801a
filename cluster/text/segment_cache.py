"""Token ids of the parts of chats that were tokenised before; bounded."""

import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_BYTES = 64 * 2**20
_ENTRY_BYTES = 400
"""Of dictionary, key and array, besides the text and the ids."""


class Segment(NamedTuple):
    """space: the name space of the caller's pages. Equal texts of two spaces are two segments, so that how fast a text
    is tokenised tells nobody what another tenant has sent (51). plain_at: where control tokens begin that users wrote.
    """

    space: str | None
    text: str
    plain_at: tuple[int, ...] = ()


class SegmentCache:
    """The least recently used go first. What takes more than an eighth of the room is not kept: one huge text must not
    drive out everybody's chats. Any thread may call."""

    def __init__(self, max_bytes: int = MAX_BYTES):
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, got {max_bytes}")
        self._max_bytes = max_bytes
        self._ids: OrderedDict[Segment, array[int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def find(self, segments: Iterable[Segment]) -> dict[Segment, "array[int]"]:
        """Those that are known, with their ids."""
        found: dict[Segment, array[int]] = {}
        with self._lock:
            for segment in segments:
                ids = self._ids.get(segment)
                if ids is not None:
                    self._ids.move_to_end(segment)
                    found[segment] = ids
        return found

    def keep(self, segment: Segment, ids: Sequence[int]) -> "array[int]":
        """Returns the ids as they are kept."""
        kept = array("I", ids)
        size = _size(segment, kept)
        if size > self._max_bytes // 8:
            return kept
        with self._lock:
            if segment not in self._ids:
                self._ids[segment] = kept
                self._num_bytes += size
            while self._num_bytes > self._max_bytes:
                oldest, its_ids = self._ids.popitem(last=False)
                self._num_bytes -= _size(oldest, its_ids)
        return kept


def _size(segment: Segment, ids: "array[int]") -> int:
    return _ENTRY_BYTES + sys.getsizeof(segment.text) + len(ids) * ids.itemsize + 8 * len(segment.plain_at)
