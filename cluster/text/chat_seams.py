"""Where a rendered chat can be cut so that its parts have the same token ids alone as together."""

import logging
from collections.abc import Iterable, Sequence
from itertools import product

from tokenizers import AddedToken, Tokenizer

logger = logging.getLogger(__name__)

_NEIGHBOURS = (
    "",
    " ",
    "\n",
    "a",
    "Hello",
    " a",
    "a ",
    "  \n\n ",
    "'s",
    "1",
    "-",
    "é",
    "\u0301",
    "世界",
    "▁",
    "👩‍🚀",
    "<",
    ">",
)
"""Texts before and after a seam with which a tokenizer that looks across it gives itself away."""


def find_seams(tokenizer: Tokenizer, rendered: str) -> tuple[str, ...]:
    """The control tokens that begin a part, longest first; none where nothing can be cut for sure.

    rendered: a chat of several turns, in which the template's control tokens occur.

    A tokenizer takes added tokens out of a text first, leftmost and longest, and normalises, splits and merges what
    lies between them piece by piece. So a text may be cut before such a token, if the token is taken out wherever it
    stands, whatever its neighbours are: it takes in no blanks, no other token can overlap it, and no token asks for
    words' ends. The tokenizer itself is then asked, with neighbours that would show a dependence.
    """
    added = list(tokenizer.get_added_tokens_decoder().values())
    if any(token.single_word for token in added):
        return ()
    first = [token.content for token in added if not token.normalized]
    ids = set(tokenizer.encode(rendered, add_special_tokens=False).ids)
    there = {token.content for id, token in tokenizer.get_added_tokens_decoder().items() if id in ids}
    seams = [
        token.content
        for token in added
        if token.content in there and _is_taken_whole(token) and not _overlaps(token.content, first)
    ]
    wrong = [seam for seam in seams if not cuts_well(tokenizer, seam)]
    if wrong:
        logger.warning("chats are tokenised as a whole: tokens depend on what lies behind %r", wrong[0])
        return ()
    return tuple(sorted(seams, key=len, reverse=True))


def cuts_well(tokenizer: Tokenizer, seam: str, neighbours: Sequence[str] = _NEIGHBOURS) -> bool:
    """Whether texts that are cut before `seam` have the ids of the whole."""

    def ids(texts: Iterable[str]) -> list[list[int]]:
        return [each.ids for each in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    heads = ids(neighbours)
    tails = ids(seam + after for after in neighbours)
    wholes = ids(before + seam + after for before, after in product(neighbours, neighbours))
    return wholes == [head + tail for head, tail in product(heads, tails)]


def _is_taken_whole(token: AddedToken) -> bool:
    """Only special tokens: those that users write are known by their places (`ControlTokens`)."""
    plain = not (token.normalized or token.lstrip or token.rstrip)
    return bool(token.special and plain and token.content and token.content.strip() == token.content)


def _overlaps(seam: str, tokens: Iterable[str]) -> bool:
    """Whether some token may stand in a text where `seam` begins, but begins earlier or is longer."""
    for token in tokens:
        if token != seam and token.startswith(seam):
            return True
        for rest in (token[start:] for start in range(1, len(token))):
            if seam.startswith(rest) or rest.startswith(seam):
                return True
    return False
