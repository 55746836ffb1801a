"""Single tokens as bytes, for byte-level vocabularies and for those that write text."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from cluster.text.token_bytes import TokenBytes
from tests.replica.tiny_models import byte_tokenizer

PIECES = ["<unk>", "\u2581the", "lo", "<0xE4>", "\u2581", "é"]


def text_tokenizer() -> Tokenizer:
    """As Llama 2 and Gemma have it."""
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    return tokenizer


def test_every_byte_of_a_byte_level_vocabulary() -> None:
    token_bytes = TokenBytes(byte_tokenizer())
    assert [token_bytes(token_id) for token_id in range(256)] == [bytes([byte]) for byte in range(256)]
    assert token_bytes(256) == b"<|end|>"
    assert token_bytes(99999) == b""
    assert [token_bytes.is_special(token_id) for token_id in (65, 256, 99999)] == [False, True, True]


@pytest.mark.parametrize(
    ("token_id", "data"), [(1, b" the"), (2, b"lo"), (3, b"\xe4"), (4, b" "), (5, "é".encode()), (7, b"<tool_call>")]
)
def test_a_vocabulary_of_text(token_id: int, data: bytes) -> None:
    token_bytes = TokenBytes(text_tokenizer())
    assert token_bytes(token_id) == data
    assert not token_bytes.is_special(token_id)


def test_control_tokens_are_their_own_names() -> None:
    token_bytes = TokenBytes(text_tokenizer())
    assert token_bytes(6) == b"<s>"
    assert token_bytes.is_special(6)
