"""Text comes out character by character, each once, whole and as soon as it is complete (6, 7, A40)."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from cluster.models.default_model import DEFAULT_MODEL
from replica.cache_folders import cache_root
from replica.text.detokenizer import Detokenizer
from replica.text.text_stream import TextStream
from tests.replica.tiny_models import EOS_ID, byte_tokenizer

REPLACEMENT = "\ufffd"
TEXTS = [
    "😀 世界 ďábelské",
    "👩‍👩‍👧‍👦 family, 🏳️‍🌈 flag, 👍🏽 skin",
    "e\u0301 is not é, क्षि is one cluster, Z̷̡͓ stacks",
    "สวัสดีครับ",
    "  two spaces,\n\n\tand lines ",
    "a",
]
"""Emoji of four bytes, ZWJ families, variation selectors, combining marks, Thai, white space."""

GRAPHEMES = ["e", "1", "\U0001f3f3", "\U0001f468", "\U0001f308", "\u0915", "\u0937", "\u05d0", " "]
MARKS = ["\u0301", "\u0323", "\ufe0f", "\ufe0e", "\u200d", "\u20e3", "\u094d", "\u093f", "\U0001f3fd"]
"""What joins the character before it: accents, variation selectors, ZWJ, keycap, Devanagari signs, skin tone."""
joined_text = st.lists(st.sampled_from([*GRAPHEMES, *MARKS]), min_size=1, max_size=16).map("".join)
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=REPLACEMENT), max_size=30)


def pieces(tokenizer: Tokenizer, prompt: list[int], generated: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    return [*(detokenizer.push(token_id) for token_id in generated), detokenizer.flush()]


@cache
def byte_fallback_tokenizer() -> Tokenizer:
    """SentencePiece's way (Llama 2, Gemma): words begin with a mark, unknown characters are tokens of one byte each."""
    words = ["<unk>", "▁", "▁the", "▁cat", "s", "a", ",", "▁é"]
    vocabulary = {word: i for i, word in enumerate([*(f"<0x{byte:02X}>" for byte in range(256)), *words])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


@pytest.mark.parametrize("text", TEXTS)
def test_06_07_every_code_point_comes_once_and_at_once(text: str) -> None:
    """Not later than its last byte, and not joined to the marks that follow it."""
    detokenizer, sent = Detokenizer(byte_tokenizer(), list(b"Say: ")), ""
    for end, byte in enumerate(text.encode(), start=1):
        sent += detokenizer.push(byte)
        assert sent == text.encode()[:end].decode(errors="ignore")
    assert sent + detokenizer.flush() == text


@given(text=joined_text)
def test_7_marks_come_each_by_itself_and_at_once(text: str) -> None:
    """Nothing waits for what may still join it: text is cut between code points, and never held for a grapheme."""
    detokenizer, sent = Detokenizer(byte_tokenizer(), []), ""
    for end, byte in enumerate(text.encode(), start=1):
        sent += detokenizer.push(byte)
        assert sent == text.encode()[:end].decode(errors="ignore")
    assert detokenizer.flush() == ""


@given(text=joined_text, data=st.data())
def test_7_a_stop_string_may_be_a_mark_alone(text: str, data: st.DataObject) -> None:
    stop = data.draw(st.sampled_from(text))
    stream = TextStream(byte_tokenizer(), [], [stop])
    sent = ""
    for byte in text.encode():
        sent += stream.push(byte)
        if stream.stopped:
            break
    assert stream.stopped
    assert sent + stream.flush() == text.partition(stop)[0]


@given(prompt=any_text, text=any_text)
def test_06_the_pieces_joined_are_the_text(prompt: str, text: str) -> None:
    assert "".join(pieces(byte_tokenizer(), list(prompt.encode()), list(text.encode()))) == text


@given(data=st.binary(max_size=80))
@settings(max_examples=300)
def test_bytes_that_are_no_text_come_out_as_replacements(data: bytes) -> None:
    """As one decoding of the whole would give; and nothing is held for long."""
    detokenizer, sent = Detokenizer(byte_tokenizer(), []), ""
    for end, byte in enumerate(data, start=1):
        sent += detokenizer.push(byte)
        assert len(data[:end].decode(errors="replace")) - len(sent) <= 3
    assert sent + detokenizer.flush() == data.decode(errors="replace")


@pytest.mark.parametrize("text", TEXTS)
def test_a40_a_prompt_may_end_inside_a_character(text: str) -> None:
    """The prompt's text is never sent again; the character that it began is sent once, when it is complete."""
    data = text.encode()
    for cut in range(len(data) + 1):
        began = len(data[:cut].decode(errors="ignore").encode())
        answer = pieces(byte_tokenizer(), list(data[:cut]), list(data[cut:]))
        assert "".join(answer) == data[began:].decode()


def test_a40_what_the_prompt_left_incomplete_may_stay_so() -> None:
    emoji = list("😀".encode())
    assert pieces(byte_tokenizer(), [*b"hi ", *emoji[:2]], list(b"ok")) == ["o", "k", ""]
    assert pieces(byte_tokenizer(), [*b"hi ", *emoji[:2]], emoji[2:3]) == ["", ""]
    literal = list(f"x{REPLACEMENT}".encode())
    assert pieces(byte_tokenizer(), literal, list(b"ok")) == ["o", "k", ""]


def test_a_generation_may_end_inside_a_character() -> None:
    detokenizer = Detokenizer(byte_tokenizer(), list(b"x"))
    assert [detokenizer.push(byte) for byte in "é😀".encode()[:-1]] == ["", "é", "", "", ""]
    assert detokenizer.flush() == REPLACEMENT
    assert detokenizer.flush() == ""


def test_33_special_and_unknown_tokens_are_no_text() -> None:
    prompt = [EOS_ID, *b"a", EOS_ID + 2]
    emoji = list("😀".encode())
    generated = [EOS_ID, *b"b", *[EOS_ID] * 50, 9999, *emoji, EOS_ID + 3, *b" c", EOS_ID]
    assert "".join(pieces(byte_tokenizer(), prompt, generated)) == "b😀 c"


def test_tokens_that_all_end_inside_a_character() -> None:
    """A vocabulary can be cut so that a text never stops at a character's edge; what is complete still comes out."""
    letters = {byte: letter for letter, byte in byte_tokenizer().get_vocab().items()}
    first, inner, last = b"\xe0\xb8", b"\x81\xe0\xb8", b"\x81"  # ก is e0 b8 81
    straddling = ["".join(letters[byte] for byte in token) for token in (first, inner, last)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(straddling)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    answer = pieces(tokenizer, [], [0, *[1] * 100, 2])
    assert answer == ["", *["ก"] * 101, ""]


@given(st.lists(st.sampled_from(["the", "cats", "é", "ü", "😀", "世", "a"]), min_size=1, max_size=12).map(" ".join))
def test_sentence_piece_keeps_spaces_and_bytes(text: str) -> None:
    """The answer's first space stays, because the prompt's end is decoded with it."""
    tokenizer = byte_fallback_tokenizer()
    prompt, ids = tokenizer.encode("the cat").ids, tokenizer.encode(text).ids
    assert "".join(pieces(tokenizer, prompt, ids)) == f" {text}"
    assert "".join(pieces(tokenizer, [], ids)) == text


def test_a_decoder_that_takes_a_character_back() -> None:
    """Byte fallback decodes a run of bytes as a whole: é is no é any more while 😀 behind it is incomplete."""
    tokenizer = byte_fallback_tokenizer()
    run = list("é😀".encode())
    assert tokenizer.decode(run[:3]) == REPLACEMENT * 3
    assert pieces(tokenizer, [], run) == ["", "é", "", "", "", "😀", ""]
    assert pieces(tokenizer, [], run[:4]) == ["", "é", "", "", REPLACEMENT * 2]
    assert "".join(pieces(tokenizer, [], [*run[:3], tokenizer.token_to_id("▁cat")])) == f"é{REPLACEMENT} cat"


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    path: Path = cache_root() / "models" / DEFAULT_MODEL / "tokenizer.json"
    return Tokenizer.from_file(str(path))


@pytest.mark.parametrize("text", TEXTS)
def test_06_07_a40_the_default_model_cut_anywhere(smollm2: Tokenizer, text: str) -> None:
    """The prompt ends after any token, inside a character or not; the rest is generated."""
    ids = smollm2.encode(text).ids
    for cut in range(len(ids) + 1):
        answer = pieces(smollm2, ids[:cut], ids[cut:])
        complete = smollm2.decode(ids[:cut]).rstrip(REPLACEMENT)
        assert complete + "".join(answer) == text
        assert REPLACEMENT not in "".join(answer)


@given(text=joined_text)
def test_7_the_default_model_sends_each_code_point_once(smollm2: Tokenizer, text: str) -> None:
    """Streamed equals whole after every token, wherever the tokenizer cuts a grapheme or a character."""
    ids = smollm2.encode(text).ids
    detokenizer, sent = Detokenizer(smollm2, []), ""
    for end, token_id in enumerate(ids, start=1):
        sent += detokenizer.push(token_id)
        assert sent == smollm2.decode(ids[:end]).rstrip(REPLACEMENT)
    assert detokenizer.flush() == ""
    assert sent == text


def test_33_the_default_models_end_is_no_text(smollm2: Tokenizer) -> None:
    end = smollm2.token_to_id("<|im_end|>")
    ids = smollm2.encode("Hello, world").ids
    assert "".join(pieces(smollm2, [end], [*ids, end])) == "Hello, world"
