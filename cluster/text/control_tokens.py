"""Keeps text that users wrote from turning into control tokens of the chat format (21)."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

_MARK_POOL = range(0xF0000, 0xFFFFE)  # private use: no template holds these, and a text that does is worked around


class ControlTokenInText(ValueError):
    """The text holds a control token which this tokenizer cannot write as plain text."""


def strings_in(value: Any) -> Iterator[str]:
    """Every string of messages that may reach a template: contents, names, tool calls with the keys of arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        if isinstance(value, dict):
            yield from (key for key in value if isinstance(key, str))
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_in(item)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """The same messages with every string changed, keys included: those of tool arguments are the user's too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_strings(item, change) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Marks:
    """One private character per control token that occurs in the texts of a request, absent from all of them."""

    by_token: Mapping[str, str]
    pattern: re.Pattern[str]

    def hide(self, text: str) -> str:
        return self.pattern.sub(lambda match: self.by_token[match.group()], text)

    def reveal(self, rendered: str) -> tuple[str, list[int]]:
        """The rendered prompt with the real texts back, and the character positions where users wrote one."""
        token_of = {mark: token for token, mark in self.by_token.items()}
        pieces, positions, length = [], [], 0
        for piece in re.split("([" + "".join(token_of) + "])", rendered):
            token = token_of.get(piece)
            if token is not None:
                positions.append(length)
            pieces.append(token or piece)
            length += len(pieces[-1])
        return "".join(pieces), positions


class ControlTokens:
    """The special tokens of one tokenizer, and how their text reads when it is only text.

    A prompt without such text in its messages is not touched at all, so its ids are those of the plain template. With
    it, the whole prompt is still tokenised at once, and only the ids at the users' positions are replaced.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._id_of = {token.content: id for id, token in added.items() if token.special and token.content}
        longest_first = sorted(self._id_of, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._plain_ids = self._encode_as_text(longest_first)

    @property
    def id_of(self) -> Mapping[str, int]:
        return self._id_of

    def _encode_as_text(self, tokens: Iterable[str]) -> dict[str, list[int]]:
        self._tokenizer.encode_special_tokens = True
        plain = {token: self._tokenizer.encode(token, add_special_tokens=False).ids for token in tokens}
        self._tokenizer.encode_special_tokens = False
        return plain

    def marks_for(self, strings: Iterable[str]) -> Marks | None:
        """None in the ordinary case: no text holds a control token."""
        if self._pattern is None:
            return None
        texts = list(strings)
        found = dict.fromkeys(token for text in texts for token in self._pattern.findall(text))
        if not found:
            return None
        used = set().union(*texts)
        free = (chr(point) for point in _MARK_POOL if chr(point) not in used)
        return Marks({token: next(free) for token in found}, self._pattern)

    def encode_around(self, text: str, positions: Sequence[int]) -> list[int]:
        """Token ids of `text`, in which the control tokens that begin at `positions` (characters) are plain text."""
        encoding = self._tokenizer.encode_batch([text], add_special_tokens=False)[0]
        control_ids, ids, next_position = set(self._id_of.values()), [], 0
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            while next_position < len(positions) and positions[next_position] < start:
                next_position += 1
            if token_id in control_ids and next_position < len(positions) and positions[next_position] < end:
                ids += self._plain(text[start:end])
            else:
                ids.append(token_id)
        return ids

    def _plain(self, text: str) -> list[int]:
        """text: one control token, with the blanks around it that a tokenizer may have taken in (lstrip, rstrip)."""
        token = text.strip() if text not in self._plain_ids else text
        ids = self._plain_ids.get(token)
        if ids is None or not set(ids).isdisjoint(self._id_of.values()):
            raise ControlTokenInText(
                f"the text holds the control token {token!r}, which can only be used by the template"
            )
        before, _, after = text.partition(token)
        encode = self._tokenizer.encode
        left = encode(before, add_special_tokens=False).ids if before else []
        right = encode(after, add_special_tokens=False).ids if after else []
        return [*left, *ids, *right]
