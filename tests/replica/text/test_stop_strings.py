"""Stop strings end the text just before themselves, whatever tokens and chunks it came in (8, 10, 33, A40)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.messages import FinishReason, GenerateRequest
from replica.sampling_params import SamplingParams
from replica.text.text_stream import StopChecker, TextStream
from tests.replica.tiny_models import byte_tokenizer, random_prompt, tiny_engine

# Few letters, so that stop strings overlap with themselves, with each other and with the text.
words = st.text("ab\n€", max_size=12)
stops = st.lists(st.text("ab\n€", min_size=1, max_size=4), max_size=4).map(tuple)


def cut_by_definition(text: str, stop: tuple[str, ...]) -> str:
    """Reads one character after another and looks whether a stop string has just ended."""
    for end in range(len(text) + 1):
        ended = [len(string) for string in stop if text[:end].endswith(string)]
        if ended:
            return text[: end - max(ended)]
    return text


def held_by_definition(text: str, stop: tuple[str, ...]) -> int:
    beginnings = {string[:length] for string in stop for length in range(1, len(string))}
    return max((len(b) for b in beginnings if text.endswith(b)), default=0)


@given(chunks=st.lists(words, max_size=10), stop=stops)
@settings(max_examples=500)
def test_08_joined_chunks_are_the_text_of_the_whole(chunks: list[str], stop: tuple[str, ...]) -> None:
    text, checker, sent = "".join(chunks), StopChecker(stop), ""
    seen = ""
    for chunk in chunks:
        sent += checker.push(chunk)
        seen += chunk
        if checker.stopped:
            break
        # Held back is a suffix that may become a stop string, and nothing more.
        assert sent == seen[: len(seen) - held_by_definition(seen, stop)]
    sent += checker.flush()
    assert sent == cut_by_definition(text, stop)
    assert checker.stopped == (sent != text)


@pytest.mark.parametrize(
    ("stop", "chunks", "sent"),
    [
        (("own fox",), ["The br", "own", " f", "ox jumps"], ["The br", "", "", ""]),
        (("own fox",), ["The br", "own", " fr", "og"], ["The br", "", "own fr", "og"]),
        (("\nUser:",), ["Hi\n", "\nUs", "er", ":", "x"], ["Hi", "\n", "", "", ""]),
        (("aab",), ["a", "a", "a", "b"], ["", "", "a", ""]),
        (("bc", "abcd"), ["abcd"], ["a"]),
        (("bc", "abcd"), ["a", "b", "c", "d"], ["", "", "a", ""]),
        (("c", "abc"), ["abc"], [""]),
        ((), ["a", "b"], ["a", "b"]),
    ],
)
def test_08_cases(stop: tuple[str, ...], chunks: list[str], sent: list[str]) -> None:
    checker = StopChecker(stop)
    assert [checker.push(chunk) for chunk in chunks] == sent


def test_nothing_comes_after_a_stop_string() -> None:
    checker = StopChecker(["."])
    assert (checker.push("a.b"), checker.stopped, checker.push("c"), checker.flush()) == ("a", True, "", "")


def test_what_was_held_is_text_when_the_end_comes_first() -> None:
    checker = StopChecker(["own fox"])
    assert (checker.push("br own"), checker.flush(), checker.flush(), checker.stopped) == ("br ", "own", "", False)


@pytest.mark.parametrize("stop", [("",), ("a", "")])
def test_10_an_empty_stop_string_is_refused(stop: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="stop must not hold an empty string"):
        SamplingParams(stop=stop)


@given(text=st.text("ab😀é", max_size=20), stop=st.lists(st.text("ab😀é", min_size=1, max_size=3), max_size=3))
def test_a40_a_stream_of_byte_tokens(text: str, stop: list[str]) -> None:
    """Detokeniser and stop strings together: stop strings may begin and end inside tokens and of several bytes."""
    stream = TextStream(byte_tokenizer(), list(b"prompt"), stop)
    sent = ""
    for byte in text.encode():
        sent += stream.push(byte)
    if not stream.stopped:
        sent += stream.flush()
    assert sent == cut_by_definition(text, tuple(stop))


def test_33_8_the_engine_stops_before_the_string_and_says_so() -> None:
    """Streamed chunks joined are the text up to the stop string; a stop string of the prompt does not count."""
    prompt = [*b"ab", *random_prompt(20, seed=3)]

    def answer(stop: tuple[str, ...]) -> tuple[list[int], str, FinishReason | None]:
        engine = tiny_engine()
        engine.add(GenerateRequest("r", prompt, SamplingParams(max_tokens=24, temperature=0.0, stop=stop), 0.0))
        chunks = []
        while engine.has_work:
            chunks += engine.step()
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        assert {chunk.finish_reason for chunk in chunks[:-1]} == {None}
        return tokens, "".join(chunk.text for chunk in chunks), chunks[-1].finish_reason

    tokens, whole, reason = answer(stop=("ab",))
    assert reason is FinishReason.LENGTH and len(tokens) == 24
    assert whole == bytes(tokens).decode(errors="replace")
    middle = whole[len(whole) // 2 :][:2]
    stopped_tokens, text, reason = answer(stop=("never", middle))
    assert reason is FinishReason.STOP
    assert text == whole[: whole.index(middle)]
    assert stopped_tokens == tokens[: len(stopped_tokens)] and len(stopped_tokens) < 24


@pytest.mark.parametrize(
    ("min_tokens", "text", "reason"), [(0, "", FinishReason.STOP), (1, "\ufffd", FinishReason.LENGTH)]
)
def test_33_a_stop_string_that_only_the_end_completes_is_a_stop(
    min_tokens: int, text: str, reason: FinishReason
) -> None:
    """Half a character at the end becomes text, U+FFFD, when no more tokens may come; behind min_tokens alone that is
    looked at."""
    engine = tiny_engine()
    sampling = SamplingParams(
        max_tokens=1, temperature=0.0, stop=("\ufffd",), min_tokens=min_tokens, logit_bias=((0xC3, 100.0),)
    )
    engine.add(GenerateRequest("r", [1, 2, 3], sampling, 0.0))
    (chunk,) = engine.step()
    assert (chunk.text, chunk.finish_reason) == (text, reason)
