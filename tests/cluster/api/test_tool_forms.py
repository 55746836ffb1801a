"""Each form of tool calls: what is written in it is read back, in every cut, and the grammar allows that alone."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer

from cluster.api.answer_grammar import tool_grammar
from cluster.api.json_schema import References
from cluster.api.parameter_kinds import ALL_KINDS, kinds_of
from cluster.api.tagged_grammar import NotEnforceable
from cluster.api.tool_calls import ParsedText, ToolCallParser
from cluster.api.tools import Function
from cluster.text.tool_forms.form import ToolForm
from cluster.text.tool_forms.known_forms import GLM, HERMES, KNOWN_FORMS, LLAMA, MISTRAL, QWEN_CODER
from replica.sampling.grammar_vocabulary import grammar_vocabulary
from tests.cluster.api.read_calls import read_pieces
from tests.cluster.text.chat_tokenizers import byte_level_bpe

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "deep": {"type": "object"},
        "list": {"$ref": "#/$defs/list"},
        "maybe": {"type": ["string", "null"]},
        "unit": {"enum": ["celsius", "kelvin"]},
        "any": {},
    },
    "$defs": {"list": {"type": "array"}},
}
FUNCTIONS = [Function(name="get", parameters=SCHEMA), Function(name="get_all")]
NASTY = '\nline one\n\n<b>"q" \\ </tool_cal </par </arg é 😀 {"a": }\t\n'
ARGUMENTS: dict[str, Any] = {
    "text": NASTY, "count": -5, "deep": {"a": [1, {"b": "}<x>"}]}, "list": [], "maybe": None, "unit": "kelvin",
    "any": [1.5, "x"],
}  # fmt: skip
CALLS = [("get", ARGUMENTS), ("get_all", {}), ("get", {"text": ""})]
MARKS = (
    "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
)  # fmt: skip
TAGS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>")
END = "<|end|>"
forms = pytest.mark.parametrize("form", KNOWN_FORMS, ids=lambda form: form.name)


def parsed(form: ToolForm, *pieces: str, is_cut: bool = False) -> ParsedText:
    ids = itertools.count()
    parser = ToolCallParser(form, FUNCTIONS, lambda num_characters: f"call_{next(ids)}")
    return read_pieces(parser, *pieces, is_cut=is_cut)


def called(text: ParsedText) -> list[tuple[str | None, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in text.calls]


def answer(form: ToolForm, content: str, calls: Sequence[tuple[str, Any]] = CALLS) -> str:
    """An answer with calls; content stands before them where the form has room for it."""
    return (content if form.trigger else "") + form.write(calls)


@forms
def test_what_is_written_is_read_back(form: ToolForm) -> None:
    found = parsed(form, answer(form, "Well, <tool.\n"))
    assert called(found) == CALLS
    assert found.content == ("Well, <tool." if form.trigger else "")
    assert parsed(form, "no { call <").content == "no { call <"


@forms
@given(data=st.data())
@settings(deadline=None)
def test_a40_any_cut_gives_the_same(form: ToolForm, data: st.DataObject) -> None:
    whole = answer(form, "so: <tool [TOOL \n")
    text = whole[: data.draw(st.integers(0, len(whole)))]
    is_cut = data.draw(st.booleans())
    edges = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=12))})
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)] or [text]
    assert parsed(form, *pieces, is_cut=is_cut) == parsed(form, text, is_cut=is_cut)
    if is_cut:
        assert parsed(form, text, is_cut=True).content in "so: <tool [TOOL \n"


strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)


@forms
@given(text=strings, deep=st.dictionaries(strings, json_values, max_size=3), values=st.lists(json_values, max_size=3))
@settings(deadline=None)
def test_every_value_survives(form: ToolForm, text: str, deep: dict[str, Any], values: list[Any]) -> None:
    arguments = {"text": text, "deep": deep, "list": values}
    if form.tags is not None and form.tags.end_tag in json.dumps([text, deep, values]):
        return  # the one thing that such a form cannot hold
    assert called(parsed(form, form.write([("get", arguments)]))) == [("get", arguments)]


@forms
def test_texts_come_as_they_are_written(form: ToolForm) -> None:
    whole = form.write([("get", {"text": "one two three four"})])
    parser = ToolCallParser(form, FUNCTIONS)
    head = whole[: whole.index("three")]
    told = "".join(call.arguments for call in parser.feed(head).calls)
    assert told.startswith('{"text": "one two')


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5", 5), ("five", "five"), ("null", None), ('"5"', '"5"'), ("[1]", [1]), ("NaN", "NaN"), ("True", "True"),
        ("", ""), ("1.50", 1.5), (" 5 ", 5), ("five\nsix\n", "five\nsix\n"),
    ],
)  # fmt: skip
def test_a_value_of_any_kind_is_what_it_reads_as(written: str, value: Any) -> None:
    text = QWEN_CODER.write([("get", {"any": "VALUE"})]).replace("VALUE", written)
    assert called(parsed(QWEN_CODER, text)) == [("get", {"any": value})]


def test_a_text_that_reads_as_a_number_stays_a_text() -> None:
    for value in ("5", "null", "[1]", '{"a": 1}', '"quoted"'):
        assert called(parsed(GLM, GLM.write([("get", {"text": value})]))) == [("get", {"text": value})]


def test_kinds_of_a_schema_whose_parts_refer_to_each_other_twice_are_found_at_once() -> None:
    """Looked into along every way there are 2 ** 40 of them. What lies too deep tells nothing, and is no error."""
    for depth, kinds in ((40, {"string"}), (5000, ALL_KINDS)):
        twice = {
            f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(depth)
        }
        schema = {"$defs": {**twice, f"d{depth}": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}
        assert kinds_of(schema["properties"]["a"], References(schema)) == kinds


def test_llamas_answer_is_a_call_only_where_a_function_is_named() -> None:
    for text in ('{"name": "Bob", "age": 3}', '{"name": "got", "parameters": {}}', '{"city": "Oslo"}', "Hi {"):
        assert parsed(LLAMA, text) == ParsedText(text)
    assert called(parsed(LLAMA, '<|python_tag|>{"name": "get_all", "parameters": {}}')) == [("get_all", {})]
    assert parsed(LLAMA, '{"na', is_cut=True) == ParsedText("")
    assert parsed(LLAMA, '{"na') == ParsedText('{"na')


def test_ids_are_as_long_as_the_template_takes_them() -> None:
    (call,) = ToolCallParser(replace(MISTRAL, id_characters=9), FUNCTIONS).feed(MISTRAL.write(CALLS[1:2])).calls[:1]
    assert call.id is not None
    assert len(call.id) == 9
    assert call.id.isalnum()


def tokenizer_of(special: Sequence[str], plain: Sequence[str]) -> Tokenizer:
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (END, *special)])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return tokenizer


TOKENIZERS = {"no tokens of its own": tokenizer_of((), ()), "tokens of its own": tokenizer_of(MARKS, TAGS)}


class Checker:
    """Whether an answer, as a tokenizer writes it, is within a grammar."""

    def __init__(self, tokenizer: Tokenizer, form: ToolForm):
        self._tokenizer = tokenizer
        special = {token.content: id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self.form = replace(form, token_ids={token: id for token, id in special.items() if token in form.literals})
        self._vocabulary = grammar_vocabulary(tokenizer, tokenizer.get_vocab_size(), [special[END]])

    def allows(self, text: str, functions: Sequence[Function] = FUNCTIONS, **asked: Any) -> bool:
        grammar = tool_grammar(
            functions, form=self.form, **{"required": False, "parallel": True, "otherwise": None, **asked}
        )
        matcher = LLMatcher(self._vocabulary, grammar)
        assert not matcher.is_error(), matcher.get_error()
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting())


@pytest.mark.parametrize("tokens", TOKENIZERS)
@forms
def test_the_grammar_allows_the_forms_calls_and_no_others(form: ToolForm, tokens: str) -> None:
    checker = Checker(TOKENIZERS[tokens], form)
    calls, one = form.write(CALLS), form.write(CALLS[1:2])
    assert checker.allows(calls)
    assert checker.allows(calls, required=True)
    assert checker.allows(one, required=True, parallel=False)
    assert not checker.allows(calls, required=True, parallel=False)
    assert not checker.allows("Hello", required=True)
    assert checker.allows("Hello <b> { [")
    assert checker.allows("<think>so</think> it is")
    assert checker.allows(answer(form, "Let me see.\n"))
    assert not checker.allows(calls.replace("get_all", "got_all"))
    json_answer = ({"type": "object", "properties": {"name": {"type": "string"}}}, False)
    assert checker.allows('{"name": "Bob"}', otherwise=json_answer)
    assert checker.allows(calls, otherwise=json_answer)
    assert not checker.allows("Hello", otherwise=json_answer)


@pytest.mark.parametrize("tokens", TOKENIZERS)
@pytest.mark.parametrize("form", [form for form in KNOWN_FORMS if form.tags is not None], ids=lambda form: form.name)
def test_parameters_between_tags_follow_their_schema(form: ToolForm, tokens: str) -> None:
    checker = Checker(TOKENIZERS[tokens], form)

    def allows(schema: Any, value: Any, **more: Any) -> bool:
        parameters = {
            "type": "object",
            "properties": {"a": schema, "b": {"type": "integer"}},
            "required": ["a"],
            **more,
        }
        function = Function(name="f", parameters=parameters, strict=True)
        return checker.allows(form.write([("f", value)]), [function], required=True)

    assert allows({"type": "string"}, {"a": NASTY})
    assert allows({"type": "string"}, {"a": "x", "b": 1})
    assert not allows({"type": "string"}, {"b": 1})
    assert not allows({"type": "string"}, {"a": "x", "b": "y"})
    assert not allows({"type": "string"}, {"a": "x", "c": "y"})
    assert allows({"type": "string", "maxLength": 3}, {"a": "abc"})
    assert not allows({"type": "string", "maxLength": 3}, {"a": "abcd"})
    assert not allows({"type": "string", "minLength": 3}, {"a": "ab"})
    assert allows({"enum": ["x", "y z"]}, {"a": "y z"})
    assert not allows({"enum": ["x", "y z"]}, {"a": "z"})
    assert allows({"$ref": "#/$defs/n"}, {"a": 5}, **{"$defs": {"n": {"type": "integer", "maximum": 9}}})
    assert not allows({"$ref": "#/$defs/n"}, {"a": 50}, **{"$defs": {"n": {"type": "integer", "maximum": 9}}})
    assert allows({"items": {"$ref": "#/properties/b"}, "type": "array"}, {"a": [1, 2]})
    assert not allows({"items": {"$ref": "#/properties/b"}, "type": "array"}, {"a": ["x"]})
    assert allows({"type": "object", "properties": {"next": {"$ref": "#/properties/a"}}}, {"a": {"next": {"next": {}}}})
    assert allows({"type": "integer"}, {"a": 1}, **{"$defs": {"any": True}, "$ref": "#/$defs/any"})
    assert allows({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"a": "free"})
    assert not allows({"type": ["integer", "null"]}, {"a": "free"})
    anything = Function(name="f", parameters={"type": "object"})
    assert checker.allows(form.write([("f", {"x": "1", "y_2": "two\nlines"})]), [anything], required=True)
    assert not checker.allows(form.write([("f", {"x": "1"})]), [Function(name="f")], required=True)


@pytest.mark.parametrize("limit", [{"pattern": "^a+$"}, {"format": "date"}], ids=str)
def test_what_tags_cannot_be_held_to_is_refused_only_when_strict(limit: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", **limit}}}
    checker = Checker(TOKENIZERS["tokens of its own"], QWEN_CODER)
    text = QWEN_CODER.write([("f", {"a": "b"})])
    assert checker.allows(text, [Function(name="f", parameters=schema)])
    with pytest.raises(NotEnforceable, match=next(iter(limit))):
        checker.allows(text, [Function(name="f", parameters=schema, strict=True)])
    assert not Checker(TOKENIZERS["tokens of its own"], HERMES).allows(
        HERMES.write([("f", {"a": "b"})]), [Function(name="f", parameters=schema, strict=True)]
    )
