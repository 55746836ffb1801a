"""No byte of a page's file can change unseen."""

import pytest

from cache.tiers.disk_format import HEADER_BYTES, MAX_BLOCKS, PageFault, PageFormat
from tests.cache.tiers.disk_pages import blob, key

FORMAT = PageFormat(b"weights", 100)
KEYS = tuple(key(number) for number in range(3))
BLOB = blob(KEYS[-1], 100)
HEADER = FORMAT.header(KEYS, BLOB)


def read(header: bytes, page: bytes) -> tuple[bytes, ...]:
    keys, blob_sum = FORMAT.read_header(header, len(header) + len(page), KEYS[-1])
    FORMAT.check_blob(memoryview(page), blob_sum)
    return keys


def test_a_header_reads_as_it_was_written() -> None:
    assert len(HEADER) == HEADER_BYTES
    assert read(HEADER, BLOB) == KEYS


@pytest.mark.parametrize("num_blocks", [1, MAX_BLOCKS - 1, MAX_BLOCKS])
def test_all_numbers_of_blocks(num_blocks: int) -> None:
    keys = tuple(key(number) for number in range(num_blocks))
    assert FORMAT.read_header(FORMAT.header(keys, BLOB), FORMAT.file_bytes, keys[-1])[0] == keys


def test_every_changed_bit_is_seen() -> None:
    for at in range(HEADER_BYTES):
        with pytest.raises(PageFault):
            read(HEADER[:at] + bytes([HEADER[at] ^ 1 << at % 8]) + HEADER[at + 1 :], BLOB)
    for at in range(100):
        with pytest.raises(PageFault, match="corrupt"):
            read(HEADER, BLOB[:at] + bytes([BLOB[at] ^ 1 << at % 8]) + BLOB[at + 1 :])


def test_every_shorter_file_is_torn() -> None:
    for size in range(HEADER_BYTES + 100):
        with pytest.raises(PageFault, match="torn"):
            FORMAT.read_header(HEADER[:size], size, KEYS[-1])


@pytest.mark.parametrize("other", [PageFormat(b"weights2", 100), PageFormat(b"", 100), PageFormat(b"weights", 101)])
def test_another_identity_or_size_is_foreign(other: PageFormat) -> None:
    with pytest.raises(PageFault, match="foreign"):
        FORMAT.read_header(other.header(KEYS, BLOB), FORMAT.file_bytes, KEYS[-1])


@pytest.mark.parametrize("keys", [(), tuple(key(0) for _ in range(MAX_BLOCKS + 1)), (KEYS[-1], KEYS[0])])
def test_no_block_too_many_or_another_last_one_is_corrupt(keys: tuple[bytes, ...]) -> None:
    with pytest.raises(PageFault, match="corrupt"):
        FORMAT.read_header(FORMAT.header(keys, BLOB), FORMAT.file_bytes, KEYS[-1])
