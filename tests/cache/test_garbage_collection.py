"""What the collector has to walk."""

import gc

from cache.block_contents import BlockContents
from cache.garbage_collection import settle_garbage_collection
from cache.prefix_index import PrefixIndex

NUM_BLOCKS = 2000


def test_blocks_are_nothing_to_walk_for_the_garbage_collector() -> None:
    """A cache of 100,000 blocks must not stop the engine's thread for a quarter of a second."""
    index, contents = PrefixIndex(), BlockContents()
    gc.collect()
    before = len(gc.get_objects())
    parent = b"root"
    for number in range(NUM_BLOCKS):
        key = number.to_bytes(16, "big")
        index.add(key, number)
        contents.add(key, parent, range(16))
        parent = key
    gc.collect()
    assert len(gc.get_objects()) - before < NUM_BLOCKS // 10


def test_what_lives_as_long_as_the_process_is_never_walked_again() -> None:
    thresholds = gc.get_threshold()
    try:
        kept = [[number] for number in range(NUM_BLOCKS)]
        settle_garbage_collection()
        assert gc.get_freeze_count() >= len(kept)
        assert len(gc.get_objects()) < NUM_BLOCKS
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
