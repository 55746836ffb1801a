"""Consistent hashing (Karger et al., 1997)."""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b

POINTS_PER_REPLICA = 150


class HashRing:
    """Each replica owns so many points of a circle; a key belongs to the next point, then to the ones behind it.

    A replica that comes or goes moves only the keys of its own points.
    """

    def __init__(self, replica_ids: tuple[str, ...]):
        points = sorted(
            (_hash(f"{replica_id}#{number}".encode()), replica_id)
            for replica_id in replica_ids
            for number in range(POINTS_PER_REPLICA)
        )
        self._num_replicas = len(set(replica_ids))
        self._places = [place for place, _ in points]
        self._owners = [owner for _, owner in points]

    def walk(self, key: bytes) -> Iterator[str]:
        """All replicas, each once, in the order of their points behind the key."""
        start = bisect_right(self._places, _hash(key))
        met: set[str] = set()
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if owner not in met:
                met.add(owner)
                yield owner
                if len(met) == self._num_replicas:
                    return


@lru_cache(maxsize=32)
def ring_of(replica_ids: tuple[str, ...]) -> HashRing:
    """Rings are pure functions of the ids; those of the last few sets of candidates are kept."""
    return HashRing(replica_ids)


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")
