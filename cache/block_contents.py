"""The token ids of findable blocks, and which of them follow one another: what only explanations need."""

from array import array
from collections.abc import Collection, Iterable, Sequence

from cache.block_hasher import BlockKey

_ID_BYTES = array("I").itemsize


class BlockContents:
    """Three things are known of each block of the prefix index: its token ids, the key before it, and by that the
    blocks that follow a key. Absence means that the block cannot be hit.

    A key alone does not tell how far another text is equal to its block, so a match that ends inside a block can only
    be measured where the ids are. The first block of a text follows its name space's root (`BlockHasher.root`): who
    asks in one name space is never compared with another one's blocks (51). About half a kilobyte for each block.
    """

    def __init__(self) -> None:
        self._blocks: dict[BlockKey, tuple[BlockKey, bytes]] = {}
        # One key where there is one, as nearly always: Python's garbage collector would walk 100,000 sets.
        self._followers: dict[BlockKey, BlockKey | set[BlockKey]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, key: BlockKey, parent: BlockKey, token_ids: Sequence[int]) -> None:
        """parent: key of the block before it, or the root. token_ids: of the whole block."""
        self._blocks[key] = parent, array("I", token_ids).tobytes()
        known = self._followers.setdefault(parent, key)
        if isinstance(known, set):
            known.add(key)
        elif known != key:
            self._followers[parent] = {known, key}

    def forget(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            block = self._blocks.pop(key, None)
            if block is None:
                continue
            followers = self._followers[block[0]]
            if isinstance(followers, set):
                followers.remove(key)
            if not isinstance(followers, set) or not followers:
                del self._followers[block[0]]

    def clear(self) -> None:
        self._blocks.clear()
        self._followers.clear()

    def num_equal(self, parent: BlockKey, token_ids: Sequence[int]) -> int:
        """How many leading tokens of `token_ids` are those of some block that follows `parent`."""
        prompt = array("I", token_ids).tobytes()
        num_bytes = 0
        for key in self._following(parent):
            held = self._blocks[key][1]
            # Most followers differ from the best one so far in the first token that they would have to add.
            while num_bytes < len(prompt) and held[: num_bytes + _ID_BYTES] == prompt[: num_bytes + _ID_BYTES]:
                num_bytes += _ID_BYTES
        return num_bytes // _ID_BYTES

    def _following(self, parent: BlockKey) -> Collection[BlockKey]:
        followers = self._followers.get(parent, ())
        return (followers,) if isinstance(followers, bytes) else followers

    def root_of(self, key: BlockKey, known: dict[BlockKey, BlockKey]) -> BlockKey:
        """The first key of this chain of blocks, as far as it is known. known: what was found, for the next calls."""
        walked = []
        while key not in known and key in self._blocks:
            walked.append(key)
            key = self._blocks[key][0]
        root = known.get(key, walked[-1] if walked else key)
        known.update(dict.fromkeys(walked, root))
        return root

    def keys(self) -> set[BlockKey]:
        return set(self._blocks)

    def check_invariants(self) -> None:
        """Raises RuntimeError where the two maps disagree."""
        forward = {(parent, key) for key, (parent, _) in self._blocks.items()}
        backward = {(parent, key) for parent in self._followers for key in self._following(parent)}
        if forward != backward or not all(self._followers.values()):
            raise RuntimeError(f"block contents differ in {forward ^ backward}")
