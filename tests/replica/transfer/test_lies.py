"""A holder that knows the secret and still says wrong things gives no wrong page and ends the pull."""

import os
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from replica.channel.frames import framed, packed
from replica.transfer import page_slots
from replica.transfer.page_protocol import End, Page, Ready, checksum
from replica.transfer.timed_socket import TimedSocket
from replica.transfer.transfer import PullEnd
from tests.replica.transfer.pages import PAGE_BYTES, blob_of, keys_of, pull, pulling
from tests.replica.transfer.raw_peers import Say, raw_holder, until_closed

KEYS = keys_of(6)
A_MOMENT = 0.2
READY = packed(Ready(PAGE_BYTES, 0))


def page(number: int, blob_number: int | None = None) -> bytes:
    blob = blob_of(KEYS[number if blob_number is None else blob_number])
    return packed(Page(checksum(KEYS[number], memoryview(blob_of(KEYS[number]))))) + blob


def says(*parts: bytes, then: Say = until_closed) -> Say:
    """Ready and these bytes, whatever it is asked."""

    def say(sock: TimedSocket) -> None:
        sock.write(*parts)
        then(sock)

    return say


def hangs_up(sock: TimedSocket) -> None:
    """With what was sent still on its way."""


def never_stops(sock: TimedSocket) -> None:
    while True:
        sock.write(bytes(2**16))


@pytest.mark.parametrize(
    ("say", "num_pages", "ends"),
    [
        (says(), 0, PullEnd.LATE),
        (says(READY), 0, PullEnd.LATE),
        (says(READY, page(0), page(1)), 2, PullEnd.LATE),
        (says(READY, page(0), page(1)[:-1]), 1, PullEnd.LATE),
        (says(READY, page(0), page(1)[:3]), 1, PullEnd.LATE),
        (says(READY, page(0), page(1, blob_number=2)), 1, PullEnd.CORRUPT),
        (says(READY, page(0), page(2)), 1, PullEnd.CORRUPT),
        (says(READY, page(0), page(0)), 1, PullEnd.CORRUPT),
        (says(READY, page(0)[:-1], page(1)), 0, PullEnd.CORRUPT),
        (says(READY, page(0), b"x", page(1)), 1, PullEnd.MALFORMED),
        (says(READY, then=never_stops), 0, PullEnd.MALFORMED),
        (says(then=never_stops), 0, PullEnd.MALFORMED),
        (says(READY, page(0), then=never_stops), 1, PullEnd.MALFORMED),
        (says(READY, framed(b"\xc1garbage")), 0, PullEnd.MALFORMED),
        (says(READY, b"\xff\xff\xff\xff"), 0, PullEnd.MALFORMED),
        (says(READY, READY), 0, PullEnd.MALFORMED),
        (says(READY, packed(End(PullEnd.COMPLETE))), 0, PullEnd.MALFORMED),
        (says(READY, packed(End(PullEnd.LATE))), 0, PullEnd.MALFORMED),
        (says(READY, packed(Page(-1))), 0, PullEnd.LATE),
        (says(READY, page(0), packed(End(PullEnd.MISSING))), 1, PullEnd.MISSING),
        (says(packed(End(PullEnd.BUSY))), 0, PullEnd.BUSY),
        (says(packed(Ready(PAGE_BYTES - 1, 0))), 0, PullEnd.OTHER_IDENTITY),
        (says(packed(Ready(2**62, 0))), 0, PullEnd.OTHER_IDENTITY),
        (says(packed(Ready(PAGE_BYTES, 4))), 0, PullEnd.MALFORMED),
        (says(packed(Ready(PAGE_BYTES, -1))), 0, PullEnd.MALFORMED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_local", [False, True], ids=["tcp", "local"])
def test_a_lie_ends_the_pull(say: Say, num_pages: int, ends: PullEnd, is_local: bool) -> None:
    with raw_holder(say, is_local) as address, pulling() as puller:
        result = pull(puller, address, KEYS, seconds=A_MOMENT if ends is PullEnd.LATE else 60)
        assert result.end is ends, result
        assert result.num_pages == num_pages or (ends is PullEnd.LATE and result.num_pages <= num_pages)


@pytest.mark.parametrize("parts", [(), (READY,), (READY, page(0)), (READY, page(0), page(1)[:5000])])
def test_a_holder_that_hangs_up_ends_the_pull(parts: Sequence[bytes]) -> None:
    with raw_holder(says(*parts, then=hangs_up)) as address, pulling() as puller:
        assert pull(puller, address, KEYS).end is PullEnd.LOST


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", PullEnd.MALFORMED),
        (framed(b"x" * 56), PullEnd.UNPROVEN),
        (framed(b"warmlane page transfer 1\n" + bytes(32)) + framed(bytes(32)), PullEnd.UNPROVEN),
        (framed(b"warmlane page transfer 1\n" + bytes(32)), PullEnd.LATE),
        (b"", PullEnd.LATE),
    ],
)
def test_what_does_not_prove_itself_gives_nothing(said: bytes, ends: PullEnd) -> None:
    with raw_holder(says(said), proves=False) as address, pulling() as puller:
        result = pull(puller, address, KEYS, seconds=A_MOMENT if ends is PullEnd.LATE else 60)
        assert (result.num_pages, result.end) == (0, ends)


def test_more_than_was_asked_for_is_never_read() -> None:
    """Nor as the answer to what is asked next: the connection is opened anew."""
    with raw_holder(says(READY, *map(page, range(6)), page(0))) as address, pulling() as puller:
        for _ in range(3):
            assert pull(puller, address, KEYS).end is PullEnd.COMPLETE


def sealed(num_slots: int, page_bytes: int) -> int:
    return page_slots.new_slots(num_slots, page_bytes)[0]


def unsealed(num_slots: int, page_bytes: int) -> int:
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, num_slots * page_bytes)
    return descriptor


@pytest.mark.parametrize(
    ("num_slots", "file"),
    [
        (2, lambda: unsealed(2, PAGE_BYTES)),
        (2, lambda: sealed(1, PAGE_BYTES)),
        (2, lambda: sealed(3, PAGE_BYTES)),
        (0, lambda: sealed(1, PAGE_BYTES)),
        (65, lambda: sealed(65, PAGE_BYTES)),
        (2**62, lambda: sealed(1, PAGE_BYTES)),
        (1, lambda: os.open(os.devnull, os.O_RDONLY)),
        (1, lambda: os.dup(0)),
    ],
    ids=["unsealed", "too short", "too long", "no slots", "too many", "far too many", "a device", "another file"],
)
def test_memory_that_could_harm_its_reader_is_not_mapped(num_slots: int, file: Callable[[], int]) -> None:
    def say(sock: TimedSocket) -> None:
        descriptor = file()
        sock.write_with_descriptor(packed(Ready(PAGE_BYTES, num_slots)), descriptor)
        os.close(descriptor)
        until_closed(sock)

    with raw_holder(say, is_local=True) as address, pulling() as puller:
        assert pull(puller, address, KEYS).end is PullEnd.MALFORMED


def test_a_slot_that_holds_something_else_is_not_taken() -> None:
    """As where a holder writes a slot anew before it was given back."""

    def say(sock: TimedSocket) -> None:
        descriptor, slots = page_slots.new_slots(2, PAGE_BYTES)
        np.copyto(np.frombuffer(slots[0], np.uint8), np.frombuffer(blob_of(KEYS[0]), np.uint8))
        sock.write_with_descriptor(packed(Ready(PAGE_BYTES, 2)), descriptor)
        os.close(descriptor)
        sock.write(*(packed(Page(checksum(key, memoryview(blob_of(key))))) for key in KEYS))
        until_closed(sock)

    with raw_holder(say, is_local=True) as address, pulling() as puller:
        result = pull(puller, address, KEYS)
        assert (result.num_pages, result.end) == (1, PullEnd.CORRUPT)


def test_shared_memory_is_neither_written_nor_taken_away_by_its_reader() -> None:
    descriptor, slots = page_slots.new_slots(2, PAGE_BYTES)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 0)
    mapped = page_slots.mapped_slots([descriptor], 2, PAGE_BYTES)
    mapped[0][:3] = b"own"  # a reader's own copy from here on
    assert bytes(slots[0][:3]) == bytes(3)
    os.close(descriptor)
