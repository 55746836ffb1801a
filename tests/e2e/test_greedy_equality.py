"""Greedy answers over HTTP are those of transformers' own generate: cold, warm, and all at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from cluster.lab.conversations import load_conversations
from tests.e2e.answer import Answer
from tests.e2e.cluster_client import ClusterClient, cacheable_tokens

NUM_NEW_TOKENS = 16
GROUP = 5
LENGTHS = (3, 7, 15, 16, 17, 24, 31, 32, 33, 40, 47, 48, 49, 64, 80, 97, 128, 150, 200, 300)


class Expected(NamedTuple):
    prompt: list[int]
    text: str
    num_tokens: int
    stopped: bool


@pytest.fixture(scope="module")
def expected(model_dir: Path, tokenizer: Any) -> list[Expected]:
    """Twenty prompts of mixed lengths, cut from recorded conversations, with transformers' answers to them."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    texts = [list(conversation.requests())[number % 5] for number, conversation in enumerate(load_conversations())]
    prompts = [tokenizer.apply_chat_template(text, add_generation_prompt=True, return_dict=False) for text in texts]
    # The end of a prompt, so that answers follow a user's turn and no two share a prefix.
    cut = [prompts[number % len(prompts)][-length:] for number, length in enumerate(LENGTHS)]
    groups = [cut[start : start + GROUP] for start in range(0, len(cut), GROUP)]  # of like lengths, so little padding
    return [case for group in groups for case in references(model, tokenizer, group)]


def references(model: Any, tokenizer: Any, prompts: list[list[int]]) -> list[Expected]:
    width = max(map(len, prompts))
    pad = tokenizer.eos_token_id
    inputs = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        outputs = model.generate(
            inputs, attention_mask=mask, max_new_tokens=NUM_NEW_TOKENS, do_sample=False, pad_token_id=pad
        )
    cases = []
    for prompt, output in zip(prompts, outputs[:, width:].tolist(), strict=True):
        stopped = tokenizer.eos_token_id in output
        ids = output[: output.index(tokenizer.eos_token_id)] if stopped else output
        cases.append(Expected(prompt, tokenizer.decode(ids), len(ids), stopped))
    return cases


def check(answer: Answer, expected: Expected) -> None:
    assert answer.text == expected.text
    assert answer.finish_reason == ("stop" if expected.stopped else "length")
    if not expected.stopped:
        assert answer.completion_tokens == expected.num_tokens == NUM_NEW_TOKENS


def test_cold_then_warm(cluster: ClusterClient, expected: list[Expected]) -> None:
    warm_on: list[str] = []
    for case in expected:
        answer = cluster.complete(case.prompt, max_tokens=NUM_NEW_TOKENS, cache_salt="alone")
        assert answer.cached_tokens == 0
        check(answer, case)
        warm_on.append(answer.replica)
    num_warm = 0
    for case, replica in zip(expected, warm_on, strict=True):
        answer = cluster.complete(case.prompt, max_tokens=NUM_NEW_TOKENS, cache_salt="alone")
        # A hit of a block or two may be outweighed by load; then the answer comes cold from the other replica.
        assert answer.cached_tokens == (cacheable_tokens(len(case.prompt)) if answer.replica == replica else 0)
        num_warm += answer.cached_tokens > 0
        check(answer, case)
    assert num_warm >= len(expected) // 2


def test_all_at_once(cluster: ClusterClient, expected: list[Expected]) -> None:
    with ThreadPoolExecutor(max_workers=len(expected)) as pool:
        answers = pool.map(
            lambda case: cluster.complete(case.prompt, max_tokens=NUM_NEW_TOKENS, cache_salt="together"), expected
        )
        for answer, case in zip(list(answers), expected, strict=True):
            check(answer, case)
