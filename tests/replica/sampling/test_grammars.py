"""Answers that must match a grammar do, whatever the model would rather say."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer

from replica.engine.async_engine import AsyncEngine
from replica.engine.engine import Engine
from replica.errors import RequestRefused
from replica.messages import FinishReason, GenerateRequest, TokenChunk
from replica.sampling.grammar_compiler import GrammarCompiler
from replica.sampling_params import SamplingParams
from replica.text.text_stream import TextStream
from tests.replica.tiny_models import EOS_ID, byte_tokenizer, greedy, random_prompt, run, tiny_engine

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["colour", "size"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = f"start: %json {json.dumps(SCHEMA)}"


def request(request_id: str, prompt: list[int], **sampling: Any) -> GenerateRequest:
    return GenerateRequest(request_id, prompt, SamplingParams(**{"max_tokens": 60, **sampling}), 0.0)


def finished(engine: Engine, *requests: GenerateRequest) -> dict[str, tuple[str, FinishReason | None]]:
    texts = {each.request_id: "" for each in requests}
    last: dict[str, TokenChunk] = {}
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for chunk in engine.step():
            texts[chunk.request_id] += chunk.text
            last[chunk.request_id] = chunk
    assert engine._outputs.is_empty
    return {request_id: (text, last[request_id].finish_reason) for request_id, text in texts.items()}


@pytest.mark.parametrize("rules", [{"temperature": 0.0}, {"seed": 1}, {"seed": 2, "top_k": 3, "presence_penalty": 1.0}])
def test_the_answer_matches_its_schema(rules: dict[str, Any]) -> None:
    engine = tiny_engine(eos_token_ids=[EOS_ID])
    text, reason = finished(engine, request("r", random_prompt(9, seed=1), grammar=GRAMMAR, **rules))["r"]
    assert reason is FinishReason.STOP
    answer = json.loads(text)
    assert answer["colour"] in ("red", "green")
    assert 0 <= answer["size"] <= 99


def test_each_row_has_its_own_grammar_or_none() -> None:
    """A batch of three grammars' rows and a free one: the free one says what it says alone."""
    engine = tiny_engine(eos_token_ids=[EOS_ID])
    prompt = random_prompt(9, seed=2)
    alone = run(tiny_engine(eos_token_ids=[EOS_ID]), [greedy(prompt, 20)])
    free = greedy(prompt, 20)
    engine.add(free)
    for each in (
        request("a", prompt, temperature=0.0, grammar='start: "yes" | "no"'),
        request("b", prompt, temperature=0.0, grammar="start: /[0-9]{3}/"),
    ):
        engine.add(each)
    tokens: dict[str, list[int]] = {free.request_id: [], "a": [], "b": []}
    while engine.has_work:
        for chunk in engine.step():
            tokens[chunk.request_id] += chunk.token_ids
    assert tokens[free.request_id] == alone[0]
    assert bytes(tokens["a"]) in (b"yes", b"no")
    assert bytes(tokens["b"]).isdigit()


def test_a_preempted_answer_goes_on_within_its_grammar() -> None:
    tight = tiny_engine(num_blocks=12, watermark=0.0, eos_token_ids=[EOS_ID])
    requests = [
        request(f"{i}", random_prompt(15, seed=20 + i), seed=i, max_tokens=33, grammar=GRAMMAR) for i in range(2)
    ]
    alone = [finished(tiny_engine(eos_token_ids=[EOS_ID]), each)[each.request_id] for each in requests]
    assert list(finished(tight, *requests).values()) == alone
    assert tight.scheduler.num_preemptions >= 1


def test_the_bound_on_tokens_may_cut_it() -> None:
    engine = tiny_engine(eos_token_ids=[EOS_ID])
    text, reason = finished(engine, request("r", [1, 2, 3], max_tokens=5, grammar=GRAMMAR))["r"]
    assert (len(text), reason) == (5, FinishReason.LENGTH)


def test_a_grammar_that_is_none_is_refused_and_leaves_nothing_behind() -> None:
    engine = tiny_engine(eos_token_ids=[EOS_ID])
    with pytest.raises(RequestRefused, match="cannot be used"):
        engine.add(request("r", [1, 2, 3], grammar='start: %json {"type": "strng"}'))
    assert not engine.has_work
    assert finished(engine, request("r", [1, 2, 3], grammar='start: "ok"'))["r"][0] == "ok"


def test_grammars_are_compiled_once() -> None:
    engine = tiny_engine(eos_token_ids=[EOS_ID])
    compiler = engine._vocabulary.grammars
    engine.prepare(request("r", [1], grammar=GRAMMAR))
    first = compiler._compiled[GRAMMAR]
    engine.prepare(request("r", [1], grammar=GRAMMAR))
    finished(engine, request("r", [1], grammar=GRAMMAR))
    assert compiler._compiled[GRAMMAR] is first
    for number in range(100):
        engine.prepare(request("r", [1], grammar=f'start: "{number}"'))
    assert len(compiler._compiled) <= 64


async def test_the_asynchronous_engine_refuses_a_bad_grammar_before_the_first_chunk() -> None:
    engine = AsyncEngine(tiny_engine(eos_token_ids=[EOS_ID]))
    try:
        with pytest.raises(RequestRefused):
            async for _ in engine.generate(request("bad", [1, 2], grammar="start: nothing")):
                pass
        texts = [
            c.text async for chunks in engine.generate(request("good", [1], grammar='start: "ok"')) for c in chunks
        ]
        assert "".join(texts) == "ok"
    finally:
        engine.close()


def tagged_tokenizer() -> Tokenizer:
    """Qwen's `<tool_call>` and `<think>` are added tokens that are no special ones."""
    tokenizer = Tokenizer.from_str(byte_tokenizer().to_str())
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<tool_call>", "<think>")])
    tokenizer.add_special_tokens([AddedToken("[CALL]", special=True, normalized=False)])
    return tokenizer


@pytest.mark.parametrize(
    ("grammar", "text", "is_allowed"),
    [
        ("start: /(.|\\n)*/", "so <think>it</think> is", True),
        ('start: "<tool_call>x"', "<tool_call>x", True),
        ('lead[lazy]: TEXT "<tool_call>"\nTEXT: /(.|\\n)*/\nstart: lead "x"', "a <tool_call>x", True),
        ("start: /(.|\\n)*/", "a [CALL]", False),
        ("start: /(.|\\n)*/", "a <|user|>", False),
        ("start: TEXT <[262]>\nTEXT: /(.|\\n)*/", "a [CALL]", True),
    ],
)
def test_added_tokens_are_text_unless_they_are_special(grammar: str, text: str, is_allowed: bool) -> None:
    tokenizer = tagged_tokenizer()
    assert tokenizer.token_to_id("[CALL]") == 262
    matcher: LLMatcher = GrammarCompiler(tokenizer, tokenizer.get_vocab_size(), [EOS_ID]).matcher(grammar)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(ids) < len(text)  # the tags are one token each
    assert (matcher.validate_tokens(ids) == len(ids)) is is_allowed


def test_special_tokens_are_text_only_where_they_are_asked_for() -> None:
    tokenizer = tagged_tokenizer()
    ids = tokenizer.encode("é[CALL]é<|user|>!", add_special_tokens=False).ids
    for shown, text in (((), "éé!"), ((262,), "é[CALL]é!")):
        stream = TextStream(tokenizer, [], [], shown)
        assert "".join(stream.push(id) for id in ids) + stream.flush() == text
    stream = TextStream(tokenizer, [], [], (262,))
    cut = [ids[0], 262, *ids[:2]]  # half a character before the mark
    assert "".join(stream.push(id) for id in cut) + stream.flush() == "\ufffd[CALL]é"


def test_a_refusal_gives_no_advice_that_no_client_can_follow() -> None:
    engine = tiny_engine(eos_token_ids=[EOS_ID])
    both = {"oneOf": [{"type": "number"}, {"type": "integer"}]}
    with pytest.raises(RequestRefused) as refusal:
        engine.prepare(request("bad", [1, 2], grammar=f"start: %json {json.dumps(both)}"))
    assert "oneOf" in refusal.value.message
    assert "option" not in refusal.value.message


def test_a_refusal_does_not_quote_the_grammar() -> None:
    engine = tiny_engine(eos_token_ids=[EOS_ID])
    bad = f"start: secret\nsecret: %json {json.dumps({'type': 'strng'})}"
    with pytest.raises(RequestRefused) as refusal:
        engine.prepare(request("bad", [1, 2], grammar=bad))
    assert "strng" in refusal.value.message
    for inner in ("secret", "%json", " | ", "at 2("):
        assert inner not in refusal.value.message
