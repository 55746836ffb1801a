"""Keeps Python's garbage collector from stopping a process that serves."""

import gc

_NEW_OBJECTS = 10_000
_OLDER_GENERATIONS = (20, 1000)
"""A full collection walks all that lives, so it comes after 200 million more new than freed containers."""


def settle_garbage_collection() -> None:
    """To be called once, when all that lives as long as the process is there (model, pool, clients).

    It is never walked again. What comes later is freed by reference counts, and cycles while they are young.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *_OLDER_GENERATIONS)
