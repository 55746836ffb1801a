"""Every byte of every file counts, whatever the parts and the threads."""

import struct
from hashlib import sha256
from pathlib import Path

import pytest

from cache import fingerprint_digests
from cache.fingerprint_digests import file_digests

PART, READ = 4096, 1024
BORDERS = sorted({n + d for n in (READ, PART, 2 * PART) for d in (-1, 0, 1)} | {0, 1, 10_000})


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint_digests, "PART_BYTES", PART)
    monkeypatch.setattr(fingerprint_digests, "READ_BYTES", READ)


def expected(data: bytes) -> str:
    parts = [sha256(data[start : start + PART]).digest() for start in range(0, len(data), PART)]
    return sha256(struct.pack("<Q", len(data)) + b"".join(parts)).hexdigest()


def test_sizes_around_parts_and_reads(tmp_path: Path) -> None:
    contents = {tmp_path / str(size): bytes(n * n % 251 for n in range(size)) for size in BORDERS}
    for path, data in contents.items():
        path.write_bytes(data)
    told: list[tuple[int, int]] = []
    found = file_digests({path: len(data) for path, data in contents.items()}, lambda *count: told.append(count))
    assert found == {path: expected(data) for path, data in contents.items()}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {sum(BORDERS)}
    assert told[-1][0] == sum(BORDERS)


def test_every_byte_of_a_file_counts(tmp_path: Path) -> None:
    path, seen, size = tmp_path / "file", set(), 2 * PART + 100
    for position in range(0, size, 61):
        data = bytearray(size)
        data[position] = 1
        path.write_bytes(data)
        seen.add(file_digests({path: size})[path])
    assert len(seen) == len(range(0, size, 61))


def test_a_file_that_became_shorter_is_no_digest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PART))
    with pytest.raises(OSError, match="file became shorter"):
        file_digests({path: PART + 1})
