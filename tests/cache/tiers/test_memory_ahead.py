"""Memory is asked for before it is used, once, and nothing in it changes."""

import mmap
from itertools import pairwise

import pytest

from cache.tiers.memory_ahead import PART_BYTES, MemoryAhead, populate_of


@pytest.mark.parametrize("num_bytes", [1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 10 * PART_BYTES + 7])
def test_all_of_it_is_asked_for_once_and_ahead_of_its_use(num_bytes: int) -> None:
    asked: list[tuple[int, int]] = []

    def populate(first: int, length: int) -> bool:
        asked.append((first, length))
        return True

    ahead = MemoryAhead(num_bytes, populate, ahead_bytes=2 * PART_BYTES)
    for end in range(1, num_bytes + 1, PART_BYTES // 3):
        ahead.join()
        assert sum(length for _, length in asked) >= min(num_bytes, end + PART_BYTES // 2)
        ahead.used(end)
    ahead.join()
    assert asked[0][0] == 0
    assert all(first + length == after for (first, length), (after, _) in pairwise(asked))
    assert sum(asked[-1]) == num_bytes
    assert max(length for _, length in asked) <= PART_BYTES


def test_a_system_that_cannot_is_not_asked_again_at_once() -> None:
    asked: list[int] = []

    def populate(first: int, length: int) -> bool:
        asked.append(first)
        return False

    MemoryAhead(8 * PART_BYTES, populate, ahead_bytes=4 * PART_BYTES).join()
    assert asked == [0]


def test_what_lies_there_stays() -> None:
    memory = mmap.mmap(-1, 3 * PART_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[5000:5003] = b"abc"
    ahead = MemoryAhead(len(memory), populate_of(memory))
    ahead.join()
    assert memory[5000:5003] == b"abc"
    assert not any(memory[:5000]) and not any(memory[5003:])
