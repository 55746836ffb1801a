"""Offsets of tokens whose bytes are no text by themselves, against the text that the bytes give together."""

import itertools

import pytest

from cluster.api.logprobs_format import ChatLogprobs, CompletionLogprobs
from replica.messages import TokenChunk, TokenLogprobs


class Bytes:
    """A token is what its name in `tokens` says; `special` ones never become text."""

    def __init__(self, tokens: list[bytes], special: tuple[int, ...] = ()):
        self._tokens, self._special = tokens, special

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special


def chunk(token_ids: list[int]) -> TokenChunk:
    return TokenChunk("r", token_ids=token_ids, logprobs=[TokenLogprobs(token_id, -1.0) for token_id in token_ids])


PIECES = [b"a", b"\xf0", b"\x9f", b"\x98\x80", b"\xd6", b"\xc3\xa9x", b"yz", b"<end>", b""]


@pytest.mark.parametrize("token_ids", list(itertools.product(range(len(PIECES)), repeat=3)), ids=str)
def test_38_offsets_are_those_of_the_joined_text(token_ids: tuple[int, ...]) -> None:
    """Each token's own text, where it has some, stands in the whole text at its offset."""
    logprobs = CompletionLogprobs(Bytes(PIECES, special=(7,)))
    logprobs.add(chunk([0, *token_ids, 6]))
    lists = logprobs.take()
    assert lists is not None
    text = b"".join(PIECES[token_id] for token_id in (0, *token_ids, 6) if token_id != 7).decode(errors="replace")
    offsets = lists["text_offset"]
    assert offsets == sorted(offsets)
    for token_id, offset in zip((0, *token_ids, 6), offsets, strict=True):
        if token_id in (0, 5, 6):
            expected = PIECES[token_id].decode()
            assert text[offset : offset + len(expected)] == expected
    assert {len(values) for values in lists.values()} == {5}


def test_38_the_parts_of_one_character_share_its_offset() -> None:
    logprobs = CompletionLogprobs(Bytes(PIECES))
    logprobs.add(chunk([0, 1, 2, 3, 6]))
    lists = logprobs.take()
    assert lists is not None
    assert lists["text_offset"] == [0, 1, 1, 1, 2]
    assert lists["tokens"] == ["a", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x98\\x80", "yz"]


def test_the_echo_of_a_tokenizer_that_adds_a_control_token_and_a_blank() -> None:
    """As Llama 2: `<s>` is no part of the text, and the first word's blank is not either."""
    logprobs = CompletionLogprobs(Bytes([b"<s>", b" Hello", b" you"], special=(0,)), [0, 1, 2], "Hello you")
    logprobs.add(TokenChunk("r", prompt_logprobs=[TokenLogprobs(1, -1.0), TokenLogprobs(2, -2.0)]))
    lists = logprobs.take()
    assert lists is not None
    assert lists["text_offset"] == [0, 0, 5]
    assert lists["token_logprobs"] == [None, -1.0, -2.0]


def test_chat_entries_of_half_a_character_have_bytes() -> None:
    logprobs = ChatLogprobs(Bytes(PIECES))
    logprobs.add(TokenChunk("r", token_ids=[1], logprobs=[TokenLogprobs(1, -0.5, ((1, -0.5), (0, -2.0)))]))
    told = logprobs.take()
    assert told is not None
    (entry,) = told["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("\\xf0", [0xF0], -0.5)
    assert [top["token"] for top in entry["top_logprobs"]] == ["\\xf0", "a"]
    assert logprobs.take() is None
