"""From token ids to text, one token at a time, without ever splitting a character."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_CONTEXT_TOKENS = 8
"""Prompt tokens that the stream sees first, so that a leading space of the answer is kept."""


class Detokenizer:
    """Text of the generated tokens of one request. Special tokens never become text (33).

    `push` gives out a character as soon as its last byte is there (6); cut by code point, never by grapheme (7).
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]):
        self._tokenizer = tokenizer
        self._context = list(prompt_ids[-_CONTEXT_TOKENS:])
        # A prompt may end inside a character; that beginning belongs to the prompt and must not be sent again (A40).
        self._stream = DecodeStream(ids=self._context, skip_special_tokens=True)
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """The characters that became complete with this token, often none or several."""
        self._pending.append(token_id)
        text = self._stream.step(self._tokenizer, token_id)
        if text is None:
            return ""
        self._pending.clear()
        return text

    def flush(self) -> str:
        """What is left when the generation ends inside a character: its bytes as U+FFFD, or nothing."""
        text = self._tokenizer.decode(self._pending, skip_special_tokens=True) if self._pending else ""
        self._pending.clear()
        return text
