"""Tool calls in text, whole and in every possible cut; and how tools are written into plain messages."""

import itertools

import pytest

from cluster.api.tool_calls import ParsedText, ToolCallDelta, ToolCallParser
from cluster.text.tool_prompt import plain_messages
from tests.cluster.api.read_calls import read_pieces

CALL = '<tool_call>\n{"name": "get", "arguments": {"a": "}\\"{", "b": [1, {"c": 2}]}}\n</tool_call>'
ARGUMENTS = '{"a": "}\\"{", "b": [1, {"c": 2}]}'


def parser() -> ToolCallParser:
    ids = itertools.count(1)
    return ToolCallParser(new_id=lambda length: f"call_{next(ids)}")


def parsed(*pieces: str, is_cut: bool = False) -> ParsedText:
    return read_pieces(parser(), *pieces, is_cut=is_cut)


@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        (CALL, "", 1),
        (f"Let me see.\n{CALL}", "Let me see.", 1),
        (f"{CALL}\n{CALL}", "", 2),
        (f"a {CALL} b", "a b", 1),
        ("no call, but <tool and <tool_cal", "no call, but <tool and <tool_cal", 0),
        ("blanks at the end \n", "blanks at the end \n", 0),
        ("", "", 0),
    ],
)
def test_content_and_calls(text: str, content: str, num_calls: int) -> None:
    found = parsed(text)
    assert found.content == content
    expected = [ToolCallDelta(i, ARGUMENTS, f"call_{i + 1}", "get") for i in range(num_calls)]
    assert found.calls == expected


def test_arguments_come_as_they_are_written() -> None:
    each = parser()
    head = '<tool_call>\n{"name": "get", "arguments": '
    assert each.feed(head).calls == []
    assert each.feed('{"a": ').calls == [ToolCallDelta(0, '{"a": ', "call_1", "get")]
    assert each.feed('"x').calls == [ToolCallDelta(0, '"x')]
    assert each.feed('"}}\n</tool').calls == [ToolCallDelta(0, '"}')]
    assert each.feed("_call>").calls == []
    assert each.num_calls == 1


@pytest.mark.parametrize("cut", ["<tool_call>\n", '<tool_call>\n{"name": "ge', '<tool_call>\n{"name": "get", "argum'])
def test_what_is_cut_before_its_arguments_begin_is_no_content(cut: str) -> None:
    assert parsed("a", cut) == parsed("a \n", cut, is_cut=True) == ParsedText("a", [])


@pytest.mark.parametrize("length", range(1, len(CALL)))
def test_no_part_of_a_call_that_was_cut_is_content(length: int) -> None:
    assert parsed(CALL[:length], is_cut=True).content == ""
    assert parsed(f"Let me see. {CALL}\n{CALL[:length]}", is_cut=True).content == "Let me see."
    assert parsed(f"Let me see. {CALL[:length]}", is_cut=True).content == "Let me see."


def test_tools_stand_in_the_system_message() -> None:
    tools = [{"type": "function", "function": {"name": "get", "parameters": {}}}]
    (system, user) = plain_messages([{"role": "user", "content": "hi"}], tools)
    assert (system["role"], user) == ("system", {"role": "user", "content": "hi"})
    assert '{"type": "function", "function": {"name": "get", "parameters": {}}}' in system["content"]
    (system,) = plain_messages([{"role": "system", "content": "Be brief."}], tools)
    assert system["content"].startswith("Be brief.\n\n# Tools")


def test_calls_and_results_become_text() -> None:
    call = {"function": {"name": "get", "arguments": {"a": "é"}}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "user", "content": "thanks"},
        {"role": "tool", "content": "late"},
    ]
    block = '<tool_call>\n{"name": "get", "arguments": {"a": "é"}}\n</tool_call>'
    assert plain_messages(messages, ()) == [
        {"role": "assistant", "content": f"{block}\n{block}"},
        {
            "role": "user",
            "content": "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>",
        },
        {"role": "user", "content": "thanks"},
        {"role": "user", "content": "<tool_response>\nlate\n</tool_response>"},
    ]
    assert "tool_calls" in messages[0]
