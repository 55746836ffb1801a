"""Which page holds which block key: the hash chain that makes a prompt's leading blocks findable."""

from collections.abc import Sequence

from cache.block_hasher import BlockKey


class PrefixIndex:
    """Two maps that are always each other's inverse.

    `_pages[key]`: pages that hold the key's block, oldest first. The same content may stand in two pages (29).
    `_keys[page]`: keys of the page's leading blocks in order. Absence means: nothing in that page can be hit.
    A key stands for its whole chain, so in every page it sits at the same offset.
    """

    def __init__(self) -> None:
        # Tuples of numbers and bytes: Python's garbage collector leaves them alone, lists it would walk by the 100,000.
        self._pages: dict[BlockKey, tuple[int, ...]] = {}
        self._keys: dict[int, tuple[BlockKey, ...]] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, key: BlockKey) -> int | None:
        """A page that holds the block of `key`, or None."""
        pages = self._pages.get(key)
        return pages[0] if pages else None

    def keys_of(self, page_id: int) -> Sequence[BlockKey]:
        return self._keys.get(page_id, ())

    def pages(self) -> dict[int, tuple[BlockKey, ...]]:
        """A copy: the keys of each page, in the order in which pages got their first one. Any thread."""
        return self._keys.copy()

    def add(self, key: BlockKey, page_id: int) -> bool:
        """Makes the page's next block findable. Returns True where this is the key's first copy."""
        self._keys[page_id] = (*self._keys.get(page_id, ()), key)
        self._pages[key] = (*self._pages.get(key, ()), page_id)
        return len(self._pages[key]) == 1

    def drop_page(self, page_id: int) -> list[BlockKey]:
        """Forgets everything in the page. Returns the keys whose last copy that was (A29)."""
        gone = []
        for key in self._keys.pop(page_id, ()):
            pages = tuple(page for page in self._pages[key] if page != page_id)
            if pages:
                self._pages[key] = pages
            else:
                del self._pages[key]
                gone.append(key)
        return gone

    def clear(self) -> None:
        self._pages.clear()
        self._keys.clear()

    def keys(self) -> set[BlockKey]:
        return set(self._pages)

    def check_invariants(self) -> None:
        """Raises RuntimeError where the two maps disagree."""
        forward = {(key, page) for key, pages in self._pages.items() for page in pages}
        backward = {(key, page) for page, keys in self._keys.items() for key in keys}
        if forward != backward:
            raise RuntimeError(f"prefix index maps differ in {forward ^ backward}")
        if any(len(set(pages)) != len(pages) or not pages for pages in self._pages.values()):
            raise RuntimeError("a key lists a page twice or lists none")
