"""One request's random numbers."""

import secrets
from hashlib import blake2b

_BYTES = 6


class RandomStream:
    """Uniform numbers that depend on the seed and on how many were drawn, and on nothing else.

    Hashed and not generated from hidden state, so a stream costs nothing to keep, goes on where it was after a
    preemption, and is the same on every device and in any batch (35).
    """

    def __init__(self, seed: int | None):
        """seed: a 64-bit integer; None draws one."""
        number = secrets.randbits(63) if seed is None else seed
        self._key = number.to_bytes(8, "little", signed=True)
        self._num_drawn = 0

    def next(self) -> float:
        """The next number in [0, 1): a multiple of 2**-48, so that its product with any float64 stays below that."""
        digest = blake2b(self._num_drawn.to_bytes(8, "little"), key=self._key, digest_size=_BYTES).digest()
        self._num_drawn += 1
        return int.from_bytes(digest, "little") / 2.0 ** (8 * _BYTES)
