"""Which blocks are being computed right now, so that nobody computes them a second time (A12)."""

from collections.abc import Sequence

from cache.block_hasher import BlockKey


class InflightPrefixes:
    """Keys of prompt blocks that requests will commit soon: key -> the request that computes it first."""

    def __init__(self) -> None:
        self._owner: dict[BlockKey, str] = {}
        self._keys: dict[str, list[BlockKey]] = {}

    def begin(self, request_id: str, keys: Sequence[BlockKey]) -> None:
        """The request starts to compute the blocks of `keys`."""
        mine = [key for key in keys if key not in self._owner]
        for key in mine:
            self._owner[key] = request_id
        if mine:
            self._keys[request_id] = mine

    def end(self, request_id: str) -> None:
        """The request has committed all its blocks or gives up; unknown requests are ignored."""
        for key in self._keys.pop(request_id, ()):
            del self._owner[key]

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._owner

    def owner_of(self, key: BlockKey) -> str | None:
        """The request that computes it."""
        return self._owner.get(key)

    def num_leading(self, keys: Sequence[BlockKey]) -> int:
        """How many of the keys, from the first on, somebody is computing."""
        count = 0
        for key in keys:
            if key not in self._owner:
                break
            count += 1
        return count
