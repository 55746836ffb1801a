"""Who talks with whom and when: tool calls, system prompts, sessions, times."""

import json
from pathlib import Path

import pytest

from cluster.commands.cli import main
from cluster.lab.arrival_plan import ClosedLoop, OpenLoop
from cluster.lab.trace import Trace, TraceRequest
from cluster.lab.trace_conversations import DEFAULT_SYSTEM_PROMPT
from cluster.lab.trace_files import BUNDLED, DATA_DIR, load_trace
from cluster.lab.word_tokenizer import tokenize

CALL = {"name": "find", "arguments": '{"city":"Rome"}'}
WRITTEN = '<tool_call>\n{"name": "find", "arguments": {"city":"Rome"}}\n</tool_call>'
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens,session\n"


def load(tmp_path: Path, *lines: object, name: str = "mine.jsonl") -> Trace:
    path = tmp_path / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return load_trace(str(path))


def talk(*messages: tuple[str, object], **fields: object) -> dict:
    return {"messages": [{"role": role, "content": content} for role, content in messages], **fields}


def bailian(chat: int, parent: int | None, timestamp: float, length: int = 20, **fields: object) -> dict:
    ids = list(range(-(-length // 16)))
    return {"chat_id": chat, "parent_chat_id": parent, "timestamp": timestamp, "input_length": length,
            "output_length": 7, "type": "text", "turn": 1, "hash_ids": ids, **fields}  # fmt: skip


def test_each_turn_of_the_assistant_in_tau_is_a_request() -> None:
    """350 of the 818 only call a tool, and were left out: 468 requests."""
    rows = [json.loads(line) for line in (DATA_DIR / BUNDLED["tau"]).read_text().splitlines()]
    turns = [message for row in rows for message in row.get("messages", []) if message["role"] == "assistant"]
    silent = [message for message in turns if not message["content"]]
    assert (len(turns), len(silent), len(load_trace("tau").requests)) == (818, 350, 818)


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "tool_calls": [CALL]},
        {"tool_calls": [{"id": "1", "type": "function", "function": CALL}]},
        {"content": [], "tool_calls": [{"function": CALL}]},
        {"content": "", "function_call": CALL},
    ],
)
def test_a_tool_call_is_what_the_model_wrote(message: dict, tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", **message},
                        {"role": "tool", "content": "none"}, {"role": "assistant", "content": "Sorry"}]}  # fmt: skip
    first, second = load(tmp_path, row).requests
    assert list(first.answer_ids) == tokenize(WRITTEN) and first.num_new_tokens == len(tokenize(WRITTEN))
    assert list(second.prompt_ids[: len(first.prompt_ids) + first.num_new_tokens]) == [
        *first.prompt_ids, *first.answer_ids]  # fmt: skip


def test_a_turn_that_says_something_and_calls_two_tools_wrote_all_of_it(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "hi"},
                        {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, {"name": "x"}]}]}  # fmt: skip
    (request,) = load(tmp_path, row).requests
    other = '<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>'
    assert list(request.answer_ids) == tokenize(f"Wait.\n{WRITTEN}\n{other}")


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ("x", "tool_calls must be a list, got 'x'"),
        (["x"], "a tool call must be an object, got 'x'"),
        ([{"function": None}], "a tool call must be an object, got {'function': None}"),
        ([{"arguments": "{}"}], "it has no field 'name'"),
        ([{"name": 5}], "name must be a text, got 5"),
        ([{"name": "a", "arguments": "\ud800"}], ".* surrogates not allowed"),
    ],
)
def test_a_bad_tool_call_is_named(calls: object, told: str, tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls}]}
    with pytest.raises(ValueError, match=rf"^mine\.jsonl line 1 is no conversation: {told}"):
        load(tmp_path, row)


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("lines", [[], [{"system": "Of all."}]])
def test_a_conversation_has_one_system_prompt(role: str, lines: list, tmp_path: Path) -> None:
    own = talk((role, "Mine."), ("user", "hi"), ("assistant", "yes"))
    (request,) = load(tmp_path, *lines, own).requests
    beside = load(tmp_path, *lines, talk(("user", "hi"), ("assistant", "yes"), system="Mine."))
    assert request.prompt_ids == beside.requests[0].prompt_ids
    assert list(request.prompt_ids).count(tokenize("system")[0]) == 1
    both = load(tmp_path, *lines, {**own, "system": "Mine."})
    assert both.requests[0].prompt_ids == request.prompt_ids
    with pytest.raises(ValueError, match="its system text is another than that of its first message"):
        load(tmp_path, *lines, {**own, "system": "Other."})


def test_without_its_own_a_conversation_has_that_of_all_or_the_default(tmp_path: Path) -> None:
    plain = talk(("user", "hi"), ("assistant", "yes"))
    default = load(tmp_path, plain).requests[0].prompt_ids
    assert default == load(tmp_path, {**plain, "system": DEFAULT_SYSTEM_PROMPT}).requests[0].prompt_ids
    assert load(tmp_path, {"system": "Of all."}, plain).requests[0].prompt_ids != default


def test_bailian_has_blocks_of_16_tokens_and_seconds(tmp_path: Path) -> None:
    first, second = load(tmp_path, bailian(5, -1, 2.5, length=40), bailian(6, -1, 4.0, length=33)).requests
    assert (len(first.prompt_ids), len(second.prompt_ids)) == (40, 33)
    assert (first.num_new_tokens, first.at_seconds, second.at_seconds) == (7, 0.0, 1.5)
    assert first.prompt_ids[:33] == second.prompt_ids


def test_bailians_chats_are_sessions_by_their_parents_in_any_order_of_lines(tmp_path: Path) -> None:
    rows = [bailian(9, 7, 3.0, turn=3), bailian(1, None, 0.0), bailian(7, 5, 2.0, turn=2), bailian(5, -1, 1.0),
            bailian(8, 404, 4.0)]  # fmt: skip
    requests = load(tmp_path, *rows).requests
    assert [request.session for request in requests] == ["1", "5", "5", "5", "404"]


def test_turns_of_the_same_moment_are_in_their_order(tmp_path: Path) -> None:
    rows = [bailian(6, 5, 0.0, length=33, turn=2), bailian(5, -1, 0.0, length=17)]
    assert [len(request.prompt_ids) for request in load(tmp_path, *rows).requests] == [17, 33]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([bailian(1, -1, 0), bailian(1, -1, 1)], "line 2 is no row of a Bailian trace: chat_id 1 occurred before"),
        ([bailian(1, 2, 0), bailian(2, 1, 1)], ".*: chat_id 1 descends from itself"),
        ([bailian(1, 1, 0)], ".*: chat_id 1 descends from itself"),
        ([bailian(1, -1, 0, turn=-1)], "line 1 .*: turn must be a whole number"),
        ([bailian(1, -1, 0, chat_id=1.5)], "line 1 .*: chat_id must be a text, got 1.5"),
        ([bailian(1, -1, 0, hash_ids=[1, 2, 3])], "line 1 .* does not reach the last of 3 blocks of 16"),
    ],
)
def test_a_bad_row_of_bailian_is_named(rows: list[dict], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^mine\.jsonl:? ?{told}"):
        load(tmp_path, *rows)


def test_small_blocks_under_mooncakes_fields_are_refused(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 521, "output_length": 4, "hash_ids": list(range(33))}
    with pytest.raises(ValueError, match="does not reach the last of 33 blocks of 512"):
        load(tmp_path, row)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--trace", "sgd", "--mooncake-block", "16"], "sgd_part.jsonl has no block ids"),
        (["--trace", "synthetic", "--mooncake-block", "16"], "synthetic has no block ids"),
        (["--trace", "mine.jsonl", "--mooncake-block", "32"], "blocks must have 1 to 16, got 32"),
    ],
)
def test_a_size_of_blocks_that_does_not_suit_the_trace_is_refused(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text(json.dumps(bailian(1, -1, 0)))
    assert main(["lab", "compare", *arguments]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mine.csv", "mine.jsonl"])
def test_rows_are_sorted_by_their_times(name: str, tmp_path: Path) -> None:
    times = [7.0, 5.0, 5.0, 9.0]
    if name == "mine.csv":
        trace = load(tmp_path, CSV.strip(), *(f"{at},{30 + n},4,a" for n, at in enumerate(times)), name=name)
    else:
        trace = load(tmp_path, *(bailian(n, -1, at, length=30 + n) for n, at in enumerate(times)))
    assert [len(request.prompt_ids) for request in trace.requests] == [31, 32, 30, 33]
    assert [request.at_seconds for request in trace.requests] == [0.0, 0.0, 2.0, 4.0]
    assert [moment for moment, _ in OpenLoop.at_rate(trace, 3.0, 1).first()] == [0.0, 0.0, 0.5, 1.0]


def test_a_trace_whose_times_go_back_is_refused() -> None:
    requests = [TraceRequest([1], 1, at_seconds=at) for at in (0.0, 2.0, 1.0)]
    with pytest.raises(ValueError, match="request 2 of trace x is recorded before the one in front of it"):
        Trace("x", requests)


@pytest.mark.parametrize("field", ["session", "session_id", "conversation_id", "chat_id"])
def test_a_row_of_any_format_may_name_its_session(field: str, tmp_path: Path) -> None:
    mooncake = {"timestamp": 0, "input_length": 600, "output_length": 64, "hash_ids": [1, 2], field: 7}
    csv = load(tmp_path, CSV.strip().replace("session", field), "0,5,5,7", name="mine.csv")
    one = load(tmp_path, talk(("user", "hi"), ("assistant", "yes"), **{field: 7}))
    for trace in (csv, one, load(tmp_path, mooncake)):
        assert [request.session for request in trace.requests] == ["7"]


def test_a_closed_loop_waits_for_the_answer_before_the_next_turn_of_a_named_session(tmp_path: Path) -> None:
    trace = load(tmp_path, *(CSV + "0,5,5,a\n1,6,5,a\n2,7,5,b").splitlines(), name="mine.csv")
    plan = ClosedLoop(trace, concurrency=3)
    assert [number for _, number in plan.first()] == [0, 2]
    assert plan.after(0, 4.0) == (4.0, 1)


def test_lines_of_one_session_follow_each_other_and_ask_nothing_twice(tmp_path: Path) -> None:
    first, second = (("user", "a"), ("assistant", "b")), (("user", "c"), ("assistant", "d"))
    told = load(tmp_path, talk(*first, session="s"), talk(*first, *second, session="s"))
    assert told.requests == load(tmp_path, talk(*first, *second, session="s")).requests
    apart = load(tmp_path, talk(*first, session="s"), talk(*second, session="s"))
    assert [request.session for request in apart.requests] == ["s", "s"]


def test_a_session_that_changes_its_history_loses_no_request(tmp_path: Path) -> None:
    one, other, third = ((("user", f"u{i}"), ("assistant", f"a{i}")) for i in (1, 2, 3))
    lines = [talk(*turns, session="s") for turns in (one, other, (*other, *third))]
    assert len(load(tmp_path, *lines).requests) == 3
    lines = [talk(*turns, session="s") for turns in ((*one, *other), one, (*one, *other, *third))]
    assert len(load(tmp_path, *lines).requests) == 5
