"""How the bytes of pages go from one end to the other: over the connection, or through memory that both map.

Memory is passed as an open file over a local socket, so it needs no name, no folder and no cleaning up: it is gone with
the two processes. The holder writes pages into its slots in turn, the puller reads them there and gives each one back.
"""

import fcntl
import mmap
import os
from typing import Protocol

from replica.channel.frames import BadFrame, packed
from replica.transfer.connections import MAX_SLOTS
from replica.transfer.page_protocol import Page
from replica.transfer.timed_socket import TimedSocket

# linux/fcntl.h; Python has not all of these names, and on other systems none.
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW, _F_SEAL_FUTURE_WRITE = 1, 2, 4, 16
_RETURNED = b"\0"


class PageSender(Protocol):
    def target(self) -> memoryview:
        """Where the next page is to be written; waits until that is free."""
        ...

    def send(self, page: Page) -> None:
        """What was written to `target`."""
        ...

    def settle(self) -> None:
        """Waits until the other end has read everything."""
        ...


class PageReceiver(Protocol):
    def receive(self) -> memoryview:
        """The bytes of the page that was announced."""
        ...

    def give_back(self) -> None:
        """They have been read."""
        ...


class StreamSender:
    def __init__(self, sock: TimedSocket, page_bytes: int):
        self._sock = sock
        self._staging = memoryview(bytearray(page_bytes))

    def target(self) -> memoryview:
        return self._staging

    def send(self, page: Page) -> None:
        self._sock.write(packed(page), self._staging)

    def settle(self) -> None:
        pass


class StreamReceiver:
    def __init__(self, sock: TimedSocket, page_bytes: int):
        self._sock = sock
        self._staging = memoryview(bytearray(page_bytes))

    def receive(self) -> memoryview:
        self._sock.read_into(self._staging)
        return self._staging

    def give_back(self) -> None:
        pass


class SlotSender:
    def __init__(self, sock: TimedSocket, slots: list[memoryview]):
        self._sock = sock
        self._slots = slots
        self._num_sent = 0
        self._num_lent = 0

    def target(self) -> memoryview:
        if self._num_lent == len(self._slots):
            self._take_back()
        return self._slots[self._num_sent % len(self._slots)]

    def send(self, page: Page) -> None:
        self._num_sent += 1
        self._num_lent += 1
        self._sock.write(packed(page))

    def settle(self) -> None:
        while self._num_lent:
            self._take_back()

    def _take_back(self) -> None:
        self._num_lent -= len(self._sock.read_some(self._num_lent))  # never a byte of what is asked next


class SlotReceiver:
    def __init__(self, sock: TimedSocket, slots: list[memoryview]):
        self._sock = sock
        self._slots = slots
        self._num_received = 0

    def receive(self) -> memoryview:
        return self._slots[self._num_received % len(self._slots)]

    def give_back(self) -> None:
        self._num_received += 1
        self._sock.write(_RETURNED)


def new_slots(num_slots: int, page_bytes: int) -> tuple[int, list[memoryview]]:
    """A descriptor to pass on, which is the caller's to close, and the slots. Raises OSError where there is no memory,
    or a system that cannot seal it."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memory without a name")
    descriptor = os.memfd_create("warmlane-pages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(descriptor, 0, num_slots * page_bytes)  # else a lack of memory would kill the process
        memory = mmap.mmap(descriptor, num_slots * page_bytes)
        # Whoever gets it can neither write what others are to read nor take it away from under them.
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_FUTURE_WRITE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, _cut(memory, num_slots, page_bytes)


def mapped_slots(descriptors: list[int], num_slots: int, page_bytes: int) -> list[memoryview]:
    """The descriptors stay the caller's. Raises BadFrame for anything but what `new_slots` made, OSError from mmap."""
    if len(descriptors) != 1 or not 1 <= num_slots <= MAX_SLOTS:
        raise BadFrame(f"{num_slots} slots came with {len(descriptors)} files")
    try:
        seals, size = fcntl.fcntl(descriptors[0], _F_GET_SEALS), os.fstat(descriptors[0]).st_size
    except OSError as error:
        raise BadFrame(f"slots came in a file that cannot be sealed: {error}") from error
    # One that shrinks would kill the process that reads it.
    if not seals & _F_SEAL_SHRINK or size != num_slots * page_bytes:
        raise BadFrame(f"{num_slots} slots of {page_bytes} bytes came in a file of {size} bytes with seals {seals}")
    return _cut(mmap.mmap(descriptors[0], size, mmap.MAP_PRIVATE), num_slots, page_bytes)


def _cut(memory: mmap.mmap, num_slots: int, page_bytes: int) -> list[memoryview]:
    whole = memoryview(memory)  # holds the mapping as long as one of its parts is held
    return [whole[slot * page_bytes : (slot + 1) * page_bytes] for slot in range(num_slots)]
