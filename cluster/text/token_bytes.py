"""The bytes that single tokens stand for."""

import json
import re
from collections.abc import Callable

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BLANK = "\u2581"


class TokenBytes:
    """Byte-level vocabularies (GPT-2 and its heirs) write each byte as a letter; the others write text, with a mark for
    blanks and tokens such as `<0xE4>` for single bytes. Control tokens are their own names."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._decode: Callable[[str], bytes] = _from_letters if _is_byte_level(tokenizer) else _from_text
        self._known: dict[int, bytes] = {}

    def __call__(self, token_id: int) -> bytes:
        """Empty for an id that the tokenizer does not know."""
        data = self._known.get(token_id)
        if data is None:
            data = self._known[token_id] = self._look_up(token_id)
        return data

    def is_special(self, token_id: int) -> bool:
        """Whether the token never becomes text (33); an id that nobody knows does not either."""
        added = self._added.get(token_id)
        return added.special if added is not None else self._tokenizer.id_to_token(token_id) is None

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            content: str = self._added[token_id].content
            return content.encode()
        token = self._tokenizer.id_to_token(token_id)
        return b"" if token is None else self._decode(token)


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    decoder = tokenizer.decoder
    return decoder is not None and '"ByteLevel"' in json.dumps(json.loads(decoder.__getstate__()))


def _from_letters(token: str) -> bytes:
    return b"".join(bytes([_BYTE_OF[letter]]) if letter in _BYTE_OF else letter.encode() for letter in token)


def _from_text(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_BLANK, " ").encode()
