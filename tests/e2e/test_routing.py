"""The router and the engines agree on what is cached where, asserted on the decision and not on luck."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.lab.conversations import load_conversations
from cluster.lab.metrics_snapshot import MetricsSnapshot
from tests.e2e.cluster_client import BLOCK_SIZE, ClusterClient, cacheable_tokens, cached_tokens


def decided(grown: MetricsSnapshot) -> dict[str, float]:
    """Decisions by outcome, those that did not happen left out."""
    outcomes = grown.by_label("warmlane_route_decisions_total", "outcome", policy="expected_finish")
    return {outcome: count for outcome, count in outcomes.items() if count}


def predicted_hit_tokens(grown: MetricsSnapshot) -> float:
    return grown.total("warmlane_route_predicted_hit_tokens_total")


def replicas_used(grown: MetricsSnapshot) -> set[str]:
    prompts = grown.by_label("warmlane_prompt_tokens_total", "replica")
    return {replica for replica, tokens in prompts.items() if tokens}


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

    before = cluster.metrics()
    first = cluster.chat(chats[0], max_tokens=4)
    between = cluster.metrics()
    second = cluster.chat(chats[1], max_tokens=4)
    after = cluster.metrics()

    assert first["usage"]["prompt_tokens"] == len(rendered[0])
    assert cached_tokens(first) < common - BLOCK_SIZE
    assert decided(after.since(between)) == {"warm": 1}
    assert replicas_used(after.since(between)) == replicas_used(between.since(before))
    predicted = predicted_hit_tokens(after.since(between))
    assert predicted > 0
    assert abs(predicted - cached_tokens(second)) <= BLOCK_SIZE
    assert cached_tokens(second) == common // BLOCK_SIZE * BLOCK_SIZE
    assert after.since(between).total("warmlane_hit_tokens_total") == cached_tokens(second)


def test_case_1_ingress_and_both_replicas_compute_the_same_block_keys(
    cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    """Three processes with their own PYTHONHASHSEED: a prompt that one replica stored is predicted exactly, on both."""
    prompts = [unseen_prompt(64) for _ in range(8)]
    before = cluster.metrics()
    with ThreadPoolExecutor(len(prompts)) as pool:  # at once, so that both replicas get some
        list(pool.map(lambda prompt: cluster.complete(prompt, max_tokens=1), prompts))
    between = cluster.metrics()
    assert replicas_used(between.since(before)) == cluster.replicas()
    for prompt in prompts:
        before = cluster.metrics()
        answer = cluster.complete(prompt, max_tokens=1)
        grown = cluster.metrics().since(before)
        assert decided(grown) == {"warm": 1}
        assert predicted_hit_tokens(grown) == cached_tokens(answer) == cacheable_tokens(64)
    assert replicas_used(cluster.metrics().since(between)) == cluster.replicas()


def test_another_salt_is_another_prompt(cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]) -> None:
    prompt = unseen_prompt(64)
    cluster.complete(prompt, max_tokens=1, cache_salt="a")
    before = cluster.metrics()
    assert cached_tokens(cluster.complete(prompt, max_tokens=1, cache_salt="b")) == 0
    assert predicted_hit_tokens(cluster.metrics().since(before)) == 0
    assert cached_tokens(cluster.complete(prompt, max_tokens=1, cache_salt="a")) == cacheable_tokens(64)
