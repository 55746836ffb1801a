"""Content keys of KV blocks: the one function that engines and routers must agree on."""

import hmac
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from sys import byteorder

HASH_SCHEME_VERSION = 1
KEY_BYTES = 16

BlockKey = bytes
"""16 bytes that stand for one full block and everything before it."""


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """What makes equal token ids different content. Absent fields are not hashed at all.

    adapter: identity of the adapter's weights, never its name, which others may have after it (A35).
    cache_salt: the tenant's name space (A32); `None` is a space of its own.
    image: hash of the image that the placeholder tokens stand for.
    """

    adapter: str | None = None
    cache_salt: str | None = None
    image: str | None = None

    def encode(self) -> bytes:
        """Typed, length-prefixed fields, so that no two different values give equal bytes (C33)."""
        fields = ((1, self.adapter), (2, self.cache_salt), (3, self.image))
        parts = []
        for tag, value in fields:
            if value is not None:
                data = value.encode()
                parts.append(struct.pack("<BI", tag, len(data)) + data)
        return b"".join(parts)


NO_EXTRA_KEYS = ExtraKeys()


class BlockHasher:
    """Turns token ids into chained block keys.

    `key[i] = blake2b-128(key=secret, parent=key[i-1], token ids as little-endian uint32)`; the root is the name space
    (hash scheme version, model fingerprint, block size). Keyed, so that nobody without the secret can compute where a
    prompt's pages lie (C36), and never Python's `hash()`, so that every process agrees (A30).
    """

    def __init__(self, secret: bytes, fingerprint: str, block_size: int):
        """secret: 16 to 64 bytes shared by the cluster. fingerprint: identity of the weights. block_size: tokens.

        Raises ValueError for a secret or a block size out of bounds.
        """
        if not 16 <= len(secret) <= 64:
            raise ValueError(f"secret must have 16 to 64 bytes, got {len(secret)}")
        if not 1 <= block_size <= 1024:
            raise ValueError(f"block_size must be between 1 and 1024 tokens, got {block_size}")
        self.block_size = block_size
        self.fingerprint = fingerprint
        self._secret = secret
        # Copying a keyed state costs half of what keying a new one does, and a prompt has hundreds of blocks.
        self._keyed = blake2b(digest_size=KEY_BYTES, key=secret)
        name = fingerprint.encode()
        self._root = self._digest(struct.pack("<III", HASH_SCHEME_VERSION, block_size, len(name)) + name)

    def __reduce__(self) -> tuple[type["BlockHasher"], tuple[bytes, str, int]]:
        """To other processes it goes as what it was made of: a hash state cannot be pickled."""
        return BlockHasher, (self._secret, self.fingerprint, self.block_size)

    def _digest(self, data: bytes) -> BlockKey:
        state = self._keyed.copy()
        state.update(data)
        return state.digest()

    def keys(
        self,
        token_ids: Sequence[int],
        extra: ExtraKeys = NO_EXTRA_KEYS,
        known: Sequence[BlockKey] = (),
    ) -> list[BlockKey]:
        """Keys of all full blocks of `token_ids`; a partial last block has none (A44).

        known: keys of the leading blocks where they are computed already; they are not hashed again.
        Raises OverflowError or TypeError for ids that are not uint32.
        """
        num_blocks = len(token_ids) // self.block_size
        keys = list(known[:num_blocks])
        first = len(keys)
        ids = array("I", token_ids[first * self.block_size : num_blocks * self.block_size])
        if byteorder == "big":
            ids.byteswap()
        data = ids.tobytes()
        stride = ids.itemsize * self.block_size
        parent = keys[-1] if keys else self._root + extra.encode()
        keyed_copy = self._keyed.copy
        for start in range(0, len(data), stride):  # `_digest`, without its call
            state = keyed_copy()
            state.update(parent + data[start : start + stride])
            parent = state.digest()
            keys.append(parent)
        return keys

    def root(self, extra: ExtraKeys = NO_EXTRA_KEYS) -> BlockKey:
        """Stands for the empty text of a name space, as a key stands for a text of whole blocks. No block has it."""
        return self._digest(b"root" + self._root + extra.encode())

    @property
    def canary(self) -> BlockKey:
        """Key of a fixed block. Two processes whose canaries differ do not share secret, weights or block size."""
        return self.keys(range(self.block_size))[0]

    def agrees_with(self, canary: BlockKey) -> bool:
        return hmac.compare_digest(self.canary, canary)
