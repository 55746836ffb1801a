"""A user's own files: what can be read is, and what cannot is told with file, line and field."""

import json
import math
from pathlib import Path

import pytest

from cluster.commands.cli import main
from cluster.lab.trace import Trace
from cluster.lab.trace_files import BUNDLED, DATA_DIR, ORIGINS, load_trace
from cluster.lab.word_tokenizer import tokenize

ROW = '{"timestamp": 0, "input_length": 600, "output_length": 64, "hash_ids": [1, 2]}'
TALK = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "there"}]}'
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BOM = b"\xef\xbb\xbf"


def load(tmp_path: Path, content: str | bytes, name: str = "mine.jsonl") -> Trace:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_trace(str(path))


def mooncake(**fields: object) -> str:
    return json.dumps({**json.loads(ROW), **fields})


def talk(content: object) -> str:
    return json.dumps({"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "there"}]})


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x7f", "\u200b"])
@pytest.mark.parametrize(
    "line",
    [
        '{"messages": [{"role": "user", "content": "a%sb"}, {"role": "assistant", "content": "there"}]}',
        '{"turns": [["U", "a%sb"], ["S", "there"]]}',
        '{"question_id": 1, "turns": ["a%sb"]}',
        '{"context": "a%sb", "questions": ["why?"]}',
        '{"fewshot": "a%sb", "inputs": ["why?"]}',
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2], "note": "a%sb"}',
    ],
)
def test_only_a_line_feed_ends_a_line(line: str, character: str, tmp_path: Path) -> None:
    assert len(load(tmp_path, 2 * (line % character + "\r\n")).requests) == 2


def test_a_raw_control_character_is_no_json_and_an_escaped_one_is_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^mine\.jsonl line 1 is no JSON: Invalid control character"):
        load(tmp_path, TALK.replace("hi", "h\x0ci"))
    escaped = load(tmp_path, TALK.replace("hi", "h\\fi"))
    assert len(escaped.requests) == 1


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (ROW, "mine.jsonl"),
        (TALK, "mine.jsonl"),
        ('{"question_id": 1, "turns": ["a"]}', "mine.jsonl"),
        (CSV + "0.5,480,10\n", "mine.csv"),
    ],
)
def test_a_byte_order_mark_is_passed_over(content: str, name: str, tmp_path: Path) -> None:
    assert load(tmp_path, BOM + content.encode(), name).requests == load(tmp_path, content, name).requests


def test_a_content_of_parts_is_their_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert load(tmp_path, talk(parts)).requests == load(tmp_path, talk("one two")).requests
    assert tokenize("one two")[0] in load(tmp_path, talk(parts)).requests[0].prompt_ids


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            talk([{"type": "image_url", "image_url": {}}]),
            "is no conversation: a part of a content must be an object of",
        ),
        (talk(["hi"]), "is no conversation: a part of a content must be an object of type text, got 'hi'"),
        (talk([{"type": "text", "text": None}]), "is no conversation: text must be a text, got None"),
        (talk([{"type": "text"}]), "is no conversation: it has no field 'text'"),
        (talk(5), "is no conversation: content must be a text, got 5"),
        (talk("\ud800"), "is no conversation: .* surrogates not allowed"),
        ('{"messages": "x"}', "is no conversation: messages must be a list, got 'x'"),
        ('{"messages": ["x"]}', "is no conversation: a message must be an object, got 'x'"),
        ('{"messages": [{"content": "x"}]}', "is no conversation: it has no field 'role'"),
        ('{"system": 5}', "is no conversation: system must be a text, got 5"),
        ('{"id": 1}', "is no conversation: it has no field 'turns'"),
        ('{"turns": [["U", 5]]}', "is no conversation: the text of a turn must be a text, got 5"),
        ('{"turns": [["X", "a"]]}', "is no conversation: a turn must be a speaker, U or S"),
        ('{"turns": [[["U"], "a"]]}', "is no conversation: a turn must be a speaker, U or S"),
        ('{"turns": [{"user": "a"}]}', "is no conversation: it has no field 'assistant'"),
        ('{"turns": [5]}', "is no conversation: a turn must be an object or a pair, got 5"),
        ("{oops", "is no JSON: "),
        ("[1]", "is no JSON object"),
        ("[" * 100_000, "is no JSON: "),
    ],
)
def test_a_bad_line_of_conversations_is_named(line: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^mine\.jsonl line 3 {told}"):
        load(tmp_path, f"{TALK}\n\n{line}\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"inputs": "abc", "fewshot": "a"}', "inputs must be a list, got 'abc'"),
        ('{"inputs": [1], "fewshot": "a"}', "an item of inputs must be a text, got 1"),
        ('{"inputs": ["a"]}', "it has no field 'fewshot'"),
        ('{"questions": ["a"], "context": null}', "context must be a text, got None"),
        ('{"question_id": 2}', "it has no field 'turns'"),
    ],
)
def test_a_bad_line_of_questions_is_named(line: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^mine\.jsonl line 2 is no set of questions: {told}"):
        load(tmp_path, '{"question_id": 1, "turns": ["a"]}\n' + line)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (mooncake(timestamp=math.inf), "timestamp must be a finite number of at most 1e[+]15, got inf"),
        (mooncake(timestamp=math.nan), "timestamp must be a finite number .*, got nan"),
        (ROW.replace("0", "-1e400", 1), "timestamp must be a finite number .*, got -inf"),
        (mooncake(timestamp=10**400), "timestamp must be a finite number .*, got 1000"),
        (mooncake(timestamp="0"), "timestamp must be a finite number .*, got '0'"),
        (
            mooncake(output_length=99999999999),
            "output_length must be a whole number between 0 and 1,000,000, got 99999",
        ),
        (mooncake(output_length=-3), "output_length must be a whole number .*, got -3"),
        (mooncake(output_length=math.nan), "output_length must be a whole number .*, got nan"),
        (mooncake(output_length=True), "output_length must be a whole number .*, got True"),
        (mooncake(input_length=-5), "input_length must be a whole number .*, got -5"),
        (mooncake(input_length=600.5), "input_length must be a whole number .*, got 600.5"),
        (mooncake(input_length=1025), "an input_length of 1025 tokens does not lie in 2 blocks"),
        (mooncake(hash_ids=[]), "an input_length of 600 tokens does not lie in 0 blocks"),
        ('{"input_length": 10, "output_length": 64, "hash_ids": [0]}', "it has no field 'timestamp'"),
        (mooncake(input_length=0), "an input_length of 0 tokens does not lie in 2 blocks"),
        (mooncake(hash_ids="12"), "hash_ids must be a list, got '12'"),
        (mooncake(hash_ids=[1, None]), "hash_ids must be whole numbers of at least 0, got None"),
        (mooncake(hash_ids=[1, -2]), "hash_ids must be whole numbers of at least 0, got -2"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}', "it has no field 'hash_ids'"),
    ],
)
def test_a_bad_row_of_mooncake_is_named(line: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^mine\.jsonl line 2 is no row of a Mooncake trace: {told}"):
        load(tmp_path, f"{ROW}\n{line}\n{ROW}\n")


@pytest.mark.parametrize("content", [ROW, TALK, '{"question_id": 1, "turns": ["a"]}', CSV.strip()])
def test_what_is_no_utf8_is_named_with_its_line(content: str, tmp_path: Path) -> None:
    name = "mine.csv" if content == CSV.strip() else "mine.jsonl"
    with pytest.raises(ValueError, match=rf"^{name} line 2 is no UTF-8: invalid start byte"):
        load(tmp_path, content.encode() + b"\n\xff\n", name)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("1,-480,10", "ContextTokens must be a whole number between 0 and 1,000,000, got -480"),
        ("1,480,-1", "GeneratedTokens must be a whole number .*, got -1"),
        ("1,480,99999999999", "GeneratedTokens must be a whole number .*, got 99999999999"),
        ("1,480.5,1", "ContextTokens must be a whole number .*, got '480.5'"),
        ("1,480", "GeneratedTokens must be a whole number .*, got None"),
        ("nan,480,1", "TIMESTAMP must be a finite number .*, got nan"),
        ("1e400,480,1", "TIMESTAMP must be a finite number .*, got inf"),
        ("xx,1,2", "TIMESTAMP must be seconds or an ISO date and time, got 'xx'"),
    ],
)
def test_a_bad_row_of_arrivals_is_named(row: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^mine\.csv line 3 is no arrival: {told}"):
        load(tmp_path, f"{CSV}0,5,5\n{row}\n", "mine.csv")


def test_a_csv_of_other_columns_is_told_which_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mine\.csv line 2 is no arrival: it has no field 'TIMESTAMP'"):
        load(tmp_path, "a,b,c\n1,2,3\n", "mine.csv")


@pytest.mark.parametrize("name", ["mine.csv", "mine.jsonl"])
def test_an_empty_file_is_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mine.* is empty|trace mine has no requests"):
        load(tmp_path, "", name)


def test_counts_of_zero_that_real_traces_hold_are_read_as_one(tmp_path: Path) -> None:
    (arrival,) = load(tmp_path, CSV + "0,0,0\n", "mine.csv").requests
    assert (len(arrival.prompt_ids), arrival.num_new_tokens) == (1, 1)
    (row,) = load(tmp_path, mooncake(output_length=0)).requests
    assert row.num_new_tokens == 1


def test_times_with_and_without_a_zone(tmp_path: Path) -> None:
    plain = "2023-11-16 18:17:03.9799600,4,1\n2023-11-16 18:17:04.9799600,4,1\n"
    zones = "2023-11-16T18:17:03.97+00:00,4,1\n2023-11-16T20:17:04.97+02:00,4,1\n"
    for rows in (plain, zones):
        times = [request.at_seconds for request in load(tmp_path, CSV + rows, "mine.csv").requests]
        assert times == pytest.approx([0.0, 1.0])


def test_only_what_comes_along_has_an_origin_and_a_licence(tmp_path: Path) -> None:
    assert set(ORIGINS) == set(BUNDLED)
    for name, file_name in BUNDLED.items():
        assert load_trace(name, num_requests=5).origin == ORIGINS[name]
        own = load(tmp_path, (DATA_DIR / file_name).read_bytes(), file_name)
        assert own.origin == file_name


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seeds", "1,1"], "--seeds must differ from each other, got '1,1'"),
        (["--think-seconds", "2"], "--think-seconds is a pause of the users of --concurrency: give both, or neither"),
        (["--think-seconds", "2", "--rate", "3"], "--think-seconds is a pause of the users of --concurrency"),
    ],
)
def test_settings_that_do_not_go_together(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "compare", "--trace", "sgd", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"warmlane: {told}")
