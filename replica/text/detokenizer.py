"""From token ids to text, one token at a time, without ever splitting a character."""

from collections.abc import Sequence

from tokenizers import Tokenizer

_CONTEXT_TOKENS = 8
"""Tokens before the new ones that are decoded with them, so that spaces between tokens come out right."""
_MAX_TOKENS = 32
"""Most tokens decoded at once; reached only where every token ends inside a character."""
_REPLACEMENT = "\ufffd"
_MAX_HELD = 3
"""A character has at most four bytes, so the bytes of an incomplete one decode to at most three replacements."""


class Detokenizer:
    """Text of the generated tokens of one request. Special tokens never become text (33).

    `push` gives out a character as soon as its last byte is there (6); cut by code point, never by grapheme (7).

    `_ids`: tokens that are decoded together, of which the last `_num_pending` have unsent text. `_sent`: what of their
    text is out or belongs to the prompt. `_settled`: the same without replacements that may still become a character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]):
        self._tokenizer = tokenizer
        self._ids = list(prompt_ids[-_CONTEXT_TOKENS:])
        self._num_pending = 0
        self._text = self._sent = self._decode(self._ids)
        # A prompt may end inside a character: that character comes out once, when it is complete (A40).
        self._settled = self._sent[: len(self._sent) - _num_held(self._sent)]

    def push(self, token_id: int) -> str:
        """The characters that became complete with this token, often none or several."""
        text = self._decode([*self._ids, token_id])
        if text == self._text and not text.endswith(_REPLACEMENT):
            return ""  # a special token, or one that the tokenizer does not know
        self._ids.append(token_id)
        self._num_pending += 1
        self._text = text
        num_held = _num_held(text)
        new = self._unsent(text, len(text) - num_held)
        if new is None:
            # Some decoders take back the bytes of a complete character while the next one is incomplete.
            if num_held:
                return ""
            new = self._decode(self._ids[-self._num_pending :])
        if new and not num_held:
            self._ids = self._ids[-self._num_pending :]
            self._num_pending = 0
            self._text = self._sent = self._settled = self._decode(self._ids)
        elif new:
            self._sent = self._settled = text[: len(text) - num_held]
        if len(self._ids) > _MAX_TOKENS:
            self._forget_old(num_held)
        return new

    def flush(self) -> str:
        """What is left when the generation ends inside a character: its bytes as U+FFFD, or nothing."""
        new = self._unsent(self._text, len(self._text))
        if new is None:
            new = self._decode(self._ids[-self._num_pending :])
        self._num_pending, self._sent = 0, self._text
        return new

    def _unsent(self, text: str, end: int) -> str | None:
        """text[:end] without what is out already; None where the text does not begin with that any more."""
        for out in (self._sent, self._settled):
            if text.startswith(out):
                return text[len(out) : end]
        return None

    def _forget_old(self, num_held: int) -> None:
        self._ids = self._ids[-_CONTEXT_TOKENS:]
        self._num_pending = min(self._num_pending, len(self._ids))
        self._text = self._decode(self._ids)
        self._sent = self._settled = self._text[: len(self._text) - num_held]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def _num_held(text: str) -> int:
    """How many characters at the end are replacements that the next token may turn into a character."""
    return min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_HELD)
