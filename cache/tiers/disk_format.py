"""The bytes of a page's file: a header of one disk block, then the page's blob."""

import struct
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

from cache.block_hasher import KEY_BYTES, BlockKey

VERSION = 1
HEADER_BYTES = 4096  # a file is whole disk blocks anyway, and so the blob begins on the edge of one
MAX_BLOCKS = 32
_MAGIC = b"WLKVPAGE"
_FIELDS = struct.Struct("<8sI32sQII")  # magic, version, identity, bytes of the blob, number of blocks, blob's checksum
_SUM = struct.Struct("<I")  # of all before it, at the end of the header
_KEYS_END = _FIELDS.size + MAX_BLOCKS * KEY_BYTES

FaultCause = Literal["torn", "foreign", "corrupt", "missing", "io", "full"]


class PageFault(Exception):
    """What lies in a page's place is not that page.

    torn: shorter than a page. foreign: another program's, version's or model's, or no file at all. corrupt: bytes that
    were not written so. missing: removed by others. io: the disk failed. full: no room on it.
    """

    def __init__(self, cause: FaultCause):
        super().__init__(cause)
        self.cause: FaultCause = cause


class PageFormat:
    """Writes and checks the headers of pages with one identity and size.

    The checksum is CRC-32: it is to find accidents (a torn write, a bad sector, a file put in another's place), and a
    folder of mode 0700 is no place for forgers. Of 737,280 bytes zlib's takes 0.11 ms, SHA-1 0.34, BLAKE2b 0.54.
    """

    def __init__(self, identity: bytes, page_bytes: int):
        """identity: of whatever makes equal block keys mean equal bytes, of any length; only its hash is written."""
        self._identity = blake2b(identity, digest_size=32).digest()
        self.page_bytes = page_bytes
        self.file_bytes = HEADER_BYTES + page_bytes

    def header(self, block_keys: Sequence[BlockKey], blob: memoryview | bytearray | bytes) -> bytes:
        fields = (_MAGIC, VERSION, self._identity, self.page_bytes, len(block_keys), zlib.crc32(blob))
        head = (_FIELDS.pack(*fields) + b"".join(block_keys)).ljust(HEADER_BYTES - _SUM.size, b"\0")
        return head + _SUM.pack(zlib.crc32(head))

    def read_header(
        self, header: bytes | bytearray, file_bytes: int, key: BlockKey
    ) -> tuple[tuple[BlockKey, ...], int]:
        """Block keys and the blob's checksum. key: the last block's, by which the file is named.

        Raises PageFault.
        """
        if len(header) < HEADER_BYTES:
            raise PageFault("torn")
        magic, version, identity, page_bytes, num_blocks, blob_sum = _FIELDS.unpack_from(header)
        if magic != _MAGIC or version != VERSION:
            raise PageFault("foreign")
        head = memoryview(header)[: HEADER_BYTES - _SUM.size]
        if _SUM.unpack_from(header, HEADER_BYTES - _SUM.size) != (zlib.crc32(head),):
            raise PageFault("corrupt")
        if identity != self._identity or page_bytes != self.page_bytes:
            raise PageFault("foreign")
        if file_bytes < self.file_bytes:
            raise PageFault("torn")
        keys_end = _FIELDS.size + num_blocks * KEY_BYTES
        keys = tuple(
            bytes(header[at : at + KEY_BYTES]) for at in range(_FIELDS.size, min(keys_end, _KEYS_END), KEY_BYTES)
        )
        if file_bytes > self.file_bytes or not 1 <= num_blocks <= MAX_BLOCKS or keys[-1] != key:
            raise PageFault("corrupt")
        return keys, blob_sum

    def check_blob(self, blob: memoryview, blob_sum: int) -> None:
        """Raises PageFault."""
        if zlib.crc32(blob) != blob_sum:
            raise PageFault("corrupt")
