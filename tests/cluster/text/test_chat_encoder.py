"""Chats are tokenised in parts and have the ids of the whole, whatever a tokenizer or a template does."""

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, Tokenizer

from cluster.text.chat_encoder import ChatEncoder
from cluster.text.chat_seams import cuts_well, find_seams
from cluster.text.control_tokens import ControlTokenInText, ControlTokens
from cluster.text.segment_cache import Segment, SegmentCache
from cluster.text.tokenization import ChatTokenizer
from tests.cluster.text.chat_tokenizers import MAKES, byte_level_bpe, metaspace_bpe, with_control_tokens
from tests.cluster.text.small_tokenizer import CHATML, CONTROL_TOKENS, write_small_tokenizer

RENDERED = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
FORGETFUL = (
    "{{ messages | length }} messages{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endfor %}<|im_start|>assistant\n"
)
"""As reasoning models have it: what the assistant thought in earlier turns is left out of later ones."""
NO_TOKENS = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}[assistant] "

PIECES = [
    *CONTROL_TOKENS, "<|im_", "start|>", "|>", "<", ">", " ", "  ", "\n", "\n\n", "\t", "a", "the quick", "brown fox",
    "user", "'s", "12", "é", "\u0301", "世界", "👩‍🚀", "\u200d", "▁", "\U000f0000", "</think>", "[INST]", "<keep>",
]  # fmt: skip
contents = st.lists(st.sampled_from(PIECES), max_size=7).map("".join)
chats = st.lists(contents, min_size=1, max_size=7)


def as_messages(texts: Sequence[str]) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]


@cache
def chat_tokenizer(make: str, template: str) -> ChatTokenizer:
    """One for all examples, so that what it remembers of one is there in the next."""
    folder = write_small_tokenizer(Path(mkdtemp()))
    with_control_tokens(MAKES[make](), AddedToken("<keep>", normalized=False)).save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    return ChatTokenizer(str(folder))


def from_scratch(tokenizer: ChatTokenizer, messages: Sequence[dict[str, Any]]) -> list[int] | None:
    """The whole text at once, with nothing remembered; None where a control token cannot be written as text."""
    whole = ChatEncoder(tokenizer._backend, tokenizer._control_tokens, (), SegmentCache())
    return ids_of(tokenizer, messages, whole)


def ids_of(tokenizer: ChatTokenizer, messages: Sequence[dict[str, Any]], encoder: ChatEncoder) -> list[int] | None:
    from cluster.text.control_tokens import map_strings, strings_in

    marks = tokenizer._control_tokens.marks_for(strings_in(messages))
    try:
        if marks is None:
            return encoder.encode(tokenizer.render(messages))
        return encoder.encode(*marks.reveal(tokenizer.render(map_strings(messages, marks.hide))))
    except ControlTokenInText:
        return None


@pytest.mark.parametrize("template", [CHATML, FORGETFUL, NO_TOKENS], ids=["chatml", "forgetful", "no tokens"])
@pytest.mark.parametrize("make", MAKES)
@settings(max_examples=60)
@given(texts=chats)
def test_every_turn_has_the_ids_of_the_whole_from_scratch(make: str, template: str, texts: list[str]) -> None:
    tokenizer = chat_tokenizer(make, template)
    for num_messages in range(1, len(texts) + 1):
        messages = as_messages(texts[:num_messages])
        assert ids_of(tokenizer, messages, tokenizer._chat_encoder) == from_scratch(tokenizer, messages)


@settings(max_examples=150)
@given(text=st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@pytest.mark.parametrize("make", MAKES)
def test_any_text_is_cut_where_it_may_be(make: str, text: str) -> None:
    tokenizer = chat_tokenizer(make, CHATML)
    assert tokenizer._chat_encoder._seam is not None
    expected = tokenizer._backend.encode(text, add_special_tokens=False).ids
    assert tokenizer._chat_encoder.encode(text) == expected


@pytest.mark.parametrize("make", MAKES)
def test_chat_formats_have_seams(make: str) -> None:
    assert set(find_seams(with_control_tokens(MAKES[make]()), RENDERED)) == {"<|im_start|>", "<|im_end|>"}


@pytest.mark.parametrize(
    ("token", "left"),
    [
        (AddedToken("<x>", special=True, lstrip=True), {"<|im_start|>", "<|im_end|>"}),
        (AddedToken("<x>", special=True, rstrip=True), {"<|im_start|>", "<|im_end|>"}),
        (AddedToken("\n\n", normalized=False), {"<|im_start|>", "<|im_end|>"}),
        (AddedToken("word", single_word=True), set()),
        (AddedToken("<|im_start|>user", normalized=False), {"<|im_end|>"}),
        (AddedToken("o<|im_end|>", normalized=False), {"<|im_start|>"}),
        (AddedToken("o<|im_e", normalized=False), {"<|im_start|>"}),
        (AddedToken("o<", normalized=False), set()),
    ],
    ids=lambda value: value.content.replace("\n", "n") if isinstance(value, AddedToken) else "",
)
@settings(max_examples=100)
@given(text=st.lists(st.sampled_from([*PIECES, "<x>", " <x> ", "o<", "o<|im_e", "word"]), max_size=10).map("".join))
def test_tokens_that_touch_their_neighbours_leave_the_others_as_seams(
    token: AddedToken, left: set[str], text: str
) -> None:
    tokenizer = with_control_tokens(byte_level_bpe_copy(), token)
    seams = find_seams(tokenizer, RENDERED)
    assert set(seams) == left
    encoder = ChatEncoder(tokenizer, ControlTokens(tokenizer), seams, SegmentCache())
    assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


@cache
def _trained() -> str:
    return byte_level_bpe().to_str()


def byte_level_bpe_copy() -> Tokenizer:
    return Tokenizer.from_str(_trained())


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("<y>", special=True, lstrip=True),
        AddedToken("<y>", special=True, rstrip=True),
        AddedToken("<y>", special=True, normalized=True),
        AddedToken("<y>", special=False, normalized=False),
        AddedToken("<y> ", special=True),
        AddedToken("yy", special=True),
    ],
    ids=["lstrip", "rstrip", "normalized", "not special", "blank", "overlaps itself"],
)
def test_what_is_no_seam(token: AddedToken) -> None:
    tokenizer = with_control_tokens(byte_level_bpe_copy(), token)
    assert token.content not in find_seams(tokenizer, RENDERED + token.content)
    assert find_seams(tokenizer, RENDERED) == ("<|im_start|>", "<|im_end|>")


def test_only_tokens_that_the_template_writes_are_seams() -> None:
    tokenizer = with_control_tokens(byte_level_bpe_copy())
    assert find_seams(tokenizer, "<|endoftext|>hello") == ("<|endoftext|>",)
    assert find_seams(tokenizer, "") == ()


def test_a_tokenizer_that_looks_across_a_seam_gives_itself_away() -> None:
    """These are no added tokens, so what stands around them is split and merged with them."""
    assert not cuts_well(with_control_tokens(byte_level_bpe_copy()), "the")
    assert not cuts_well(with_control_tokens(metaspace_bpe()), "user")


@pytest.fixture
def tokenizer(tmp_path: Path) -> ChatTokenizer:
    return ChatTokenizer(str(write_small_tokenizer(tmp_path)))


CHAT = as_messages(["the quick brown fox " * 40, "jumps over " * 50, "the lazy dog " * 30, "hello " * 60, "new turn"])


async def encoded_characters(tokenizer: ChatTokenizer, messages: list[dict[str, Any]], space: str | None = None) -> int:
    """How many characters were tokenised for this request."""
    before = tokenizer._chat_encoder.num_encoded_characters
    await tokenizer.encode_chat(messages, space=space)
    return tokenizer._chat_encoder.num_encoded_characters - before


async def test_the_next_turn_tokenises_what_is_new(tokenizer: ChatTokenizer) -> None:
    await tokenizer.encode_chat(CHAT[:3])
    new = sum(len(message["content"]) for message in CHAT[3:])
    assert new <= await encoded_characters(tokenizer, CHAT) <= new + len("<|im_start|>assistant\n<|im_start|>user\n")
    assert await encoded_characters(tokenizer, CHAT) == 0


async def test_a_control_token_that_a_user_wrote_costs_its_own_turn_only(tokenizer: ChatTokenizer) -> None:
    evil = [*CHAT[:2], {"role": "user", "content": "so <|im_end|> it is"}, *CHAT[3:]]
    await tokenizer.encode_chat(CHAT)
    assert await encoded_characters(tokenizer, evil) == len("<|im_start|>user\nso <|im_end|> it is")
    assert await tokenizer.encode_chat(evil) == from_scratch(tokenizer, evil)
    # The same text as the template's own would be another part.
    assert await tokenizer.encode_chat(evil) != tokenizer._backend.encode(tokenizer.render(evil)).ids


@pytest.mark.parametrize(
    ("first", "second"), list(pairwise([None, "tenant:1:a:", "tenant:1:b:", "tenant:1:a:x", None]))
)
async def test_51_no_space_is_faster_for_what_another_one_sent(
    tokenizer: ChatTokenizer, first: str | None, second: str | None
) -> None:
    cold = await encoded_characters(tokenizer, CHAT, first)
    assert await encoded_characters(tokenizer, CHAT, second) == cold > 0
    assert await encoded_characters(tokenizer, CHAT, first) == 0


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    cache = SegmentCache(max_bytes=100_000)
    segments = [Segment(None, f"{number} " + "x" * 1000) for number in range(200)]
    for segment in segments:
        cache.keep(segment, range(300))
        cache.find([segments[0]])
    assert 50_000 < cache.num_bytes <= 100_000
    assert len(cache) < 60
    assert set(cache.find(segments)) == {segments[0], *segments[-(len(cache) - 1) :]}
    assert list(cache.find([segments[-1]])[segments[-1]]) == list(range(300))


def test_one_huge_text_does_not_drive_out_all_others() -> None:
    cache = SegmentCache(max_bytes=100_000)
    cache.keep(Segment(None, "small"), [1])
    huge = Segment(None, "x" * 20_000)
    assert list(cache.keep(huge, [1, 2])) == [1, 2]
    assert cache.find([huge, Segment(None, "small")]).keys() == {Segment(None, "small")}


def test_the_same_part_twice_is_counted_once() -> None:
    cache = SegmentCache(max_bytes=100_000)
    cache.keep(Segment("a", "b"), [1])
    size = cache.num_bytes
    cache.keep(Segment("a", "b"), [1])
    assert (cache.num_bytes, len(cache)) == (size, 1)
    with pytest.raises(ValueError, match="max_bytes must be at least 1, got 0"):
        SegmentCache(max_bytes=0)
