"""Where probes and tests cut what they compute: each border of the kernels, one less, one more, and twice as much."""

from collections.abc import Iterable
from itertools import pairwise

MAX_PROBE_TOKENS = 600
"""Borders that would take a longer probe (a window of 512 or more) are left to tests on small models."""

Span = tuple[int, int]
"""Tokens of a request that one step computes: from, up to."""


def around(borders: Iterable[int], limit: int) -> list[int]:
    """One less than each border, as many, one more and twice, ascending, from 1 to `limit`."""
    near = {length for border in borders for length in (border - 1, border, border + 1, 2 * border)}
    return sorted(length for length in near if 1 <= length <= limit)


def across_keys(borders: Iterable[int], limit: int) -> list[Span]:
    """A context that grows step by step to each length around the borders of `borders` keys, and one token beyond.

    Where lengths adjoin, a step decodes; so both a prompt's chunks and single queries end at each border.
    """
    ends = around([border for border in borders if 2 * border < limit], limit)
    ends = [*ends, ends[-1] + 1] if ends and ends[-1] < limit else ends
    return list(pairwise([0, *ends]))


def across_rows(borders: Iterable[int], limit: int) -> list[Span]:
    """Chunks of as many tokens as lie around the borders, the smallest first, as far as `limit` tokens last."""
    spans, start = [], 0
    for length in around(borders, limit):
        if start + length > limit:
            break
        spans.append((start, start + length))
        start += length
    return spans


def witnesses(spans: Iterable[Span], every: int = 7) -> list[int]:
    """The rows whose logits are compared: the first and last of each span and some between."""
    return sorted({row for start, end in spans for row in (start, end - 1, *range(start, end, every))})
