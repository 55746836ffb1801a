"""The router and the engines agree on what is cached where, asserted on the decision and not on luck."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.lab.conversations import load_conversations
from cluster.lab.metrics_snapshot import MetricsSnapshot
from tests.e2e.cluster_client import BLOCK_SIZE, ClusterClient, cacheable_tokens
from tests.e2e.fatal_request import FATAL_NEW_TOKENS, FATAL_PROMPT_TOKENS


def decided(grown: MetricsSnapshot) -> dict[str, float]:
    """Decisions by outcome, those that did not happen left out."""
    outcomes = grown.by_label("warmlane_route_decisions_total", "outcome", policy="expected_finish")
    return {outcome: count for outcome, count in outcomes.items() if count}


@pytest.fixture
def system_prompt(tokenizer: Any) -> str:
    """300 tokens that begin as no other test's prompt does."""
    words = " ".join(conversation.system_prompt for conversation in load_conversations()[:2])
    ids = tokenizer.encode("Case 22. " + words)[:300]
    return tokenizer.decode(ids)


def test_case_22_the_second_chat_with_one_system_prompt_is_predicted_warm(
    cluster: ClusterClient, tokenizer: Any, system_prompt: str
) -> None:
    chats = [
        [{"role": "system", "content": system_prompt}, {"role": "user", "content": question}]
        for question in ("Where can I eat tonight?", "Which flights leave in the morning?")
    ]
    rendered = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    common = next(i for i, (a, b) in enumerate(zip(*rendered, strict=False)) if a != b)
    assert common >= 300

    first = cluster.chat(chats[0], max_tokens=4)
    before = cluster.metrics()
    second = cluster.chat(chats[1], max_tokens=4)
    grown = cluster.metrics().since(before)

    assert first.prompt_tokens == len(rendered[0])
    assert first.cached_tokens < common - BLOCK_SIZE
    assert (second.outcome, second.replica) == ("warm", first.replica)
    assert second.predicted_hit_tokens > 0
    assert abs(second.predicted_hit_tokens - second.cached_tokens) <= BLOCK_SIZE
    assert second.cached_tokens == common // BLOCK_SIZE * BLOCK_SIZE
    # The metrics tell the same as the headers.
    assert decided(grown) == {"warm": 1}
    assert grown.total("warmlane_route_predicted_hit_tokens_total") == second.predicted_hit_tokens
    assert grown.total("warmlane_hit_tokens_total", replica=first.replica) == second.cached_tokens


def test_case_1_ingress_and_both_replicas_compute_the_same_block_keys(
    cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    """Three processes with their own PYTHONHASHSEED: what a replica stored is predicted exactly, on both replicas."""
    prompts = [unseen_prompt(256) for _ in range(6)]
    with ThreadPoolExecutor(len(prompts)) as pool:  # at once, so that both replicas get some
        first = list(pool.map(lambda prompt: cluster.complete(prompt, max_tokens=1), prompts))
    assert {answer.replica for answer in first} == cluster.replicas()
    for prompt, before in zip(prompts, first, strict=True):
        answer = cluster.complete(prompt, max_tokens=1)
        assert (answer.outcome, answer.replica) == ("warm", before.replica)
        assert answer.predicted_hit_tokens == answer.cached_tokens == cacheable_tokens(256)


def test_case_c38_a_policy_that_raises_delays_nobody(
    cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    """An exception in Ray's router would be logged and the request would hang; ours falls back and counts it."""
    before = cluster.metrics()
    body = cluster.completion_body(unseen_prompt(FATAL_PROMPT_TOKENS), max_tokens=FATAL_NEW_TOKENS, ignore_eos=True)
    response = cluster.http.post("/v1/completions", json=body)
    assert response.status_code == 200
    assert response.headers["x-warmlane-decision-outcome"] == "fallback"
    grown = cluster.metrics().since(before)
    assert decided(grown) == {"fallback": 1}
    assert grown.total("warmlane_route_fallbacks_total", reason="policy") == 1
    assert grown.total("warmlane_requests_total", finish_reason="length") == 1


def test_another_salt_is_another_prompt(cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]) -> None:
    prompt = unseen_prompt(256)
    cluster.complete(prompt, max_tokens=1, cache_salt="a")
    other = cluster.complete(prompt, max_tokens=1, cache_salt="b")
    assert (other.predicted_hit_tokens, other.cached_tokens) == (0, 0)
    assert cluster.complete(prompt, max_tokens=1, cache_salt="a").cached_tokens == cacheable_tokens(256)
