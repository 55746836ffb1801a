"""Greedy answers over HTTP are those of transformers' own generate: cold, warm, and all at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from cluster.lab.conversations import load_conversations
from tests.e2e.cluster_client import ClusterClient, cacheable_tokens, cached_tokens

NUM_NEW_TOKENS = 16
LENGTHS = (3, 7, 15, 16, 17, 24, 31, 32, 33, 40, 47, 48, 49, 64, 80, 97, 128, 150, 200, 300)


class Expected(NamedTuple):
    prompt: list[int]
    text: str
    num_tokens: int
    stopped: bool


@pytest.fixture(scope="module")
def expected(model_dir: Path, tokenizer: Any) -> Iterator[list[Expected]]:
    """Twenty prompts of mixed lengths, cut from recorded conversations, with transformers' answers to them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    texts = [list(conversation.requests())[number % 5] for number, conversation in enumerate(load_conversations())]
    prompts = [tokenizer.apply_chat_template(text, add_generation_prompt=True, return_dict=False) for text in texts]
    # The end of a prompt, so that answers follow a user's turn and no two share a prefix.
    cut = [prompts[number % len(prompts)][-length:] for number, length in enumerate(LENGTHS)]
    yield [reference(model, tokenizer, prompt) for prompt in cut]


def reference(model: Any, tokenizer: Any, prompt: list[int]) -> Expected:
    with torch.inference_mode():
        inputs = torch.tensor([prompt])
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=NUM_NEW_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )
    ids = output[0, len(prompt) :].tolist()
    stopped = ids[-1] == tokenizer.eos_token_id
    return Expected(prompt, tokenizer.decode(ids, skip_special_tokens=True), len(ids), stopped)


def check(answer: dict[str, Any], expected: Expected) -> None:
    (choice,) = answer["choices"]
    assert choice["text"] == expected.text
    assert choice["finish_reason"] == ("stop" if expected.stopped else "length")
    if not expected.stopped:
        assert answer["usage"]["completion_tokens"] == expected.num_tokens == NUM_NEW_TOKENS


def test_cold_then_warm(cluster: ClusterClient, expected: list[Expected]) -> None:
    for case in expected:
        answer = cluster.complete(case.prompt, max_tokens=NUM_NEW_TOKENS, cache_salt="alone")
        assert cached_tokens(answer) == 0
        check(answer, case)
    for case in expected:
        answer = cluster.complete(case.prompt, max_tokens=NUM_NEW_TOKENS, cache_salt="alone")
        assert cached_tokens(answer) == cacheable_tokens(len(case.prompt))
        check(answer, case)


def test_all_at_once(cluster: ClusterClient, expected: list[Expected]) -> None:
    with ThreadPoolExecutor(max_workers=len(expected)) as pool:
        answers = pool.map(
            lambda case: cluster.complete(case.prompt, max_tokens=NUM_NEW_TOKENS, cache_salt="together"), expected
        )
        for answer, case in zip(list(answers), expected, strict=True):
            check(answer, case)
