"""How far a request has come that is answered by its replica directly."""

from enum import IntEnum


class Stage(IntEnum):
    """In this order; a stage may be skipped."""

    BEGUN = 1
    FIRST_TOKEN = 2
    ENDED = 3


Progress = dict[str, int]
"""Ticket id -> the last stage, as it goes over a Serve handle."""
