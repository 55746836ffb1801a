"""One replica is killed under load: nobody who had received nothing notices, and the cluster becomes whole again."""

import asyncio
import re
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import psutil

from cluster.lab.cluster_process import ClusterProcess
from cluster.lab.conversations import Conversation, Exchange
from cluster.lab.load_client import LoadClient, RequestRecord
from tests.e2e.answer import Answer
from tests.e2e.cluster_client import ClusterClient, cacheable_tokens

NUM_CLIENTS, NUM_TURNS = 5, 3
PROMPT_TOKENS = 256


def replica_processes(cluster_process: ClusterProcess) -> list[psutil.Process]:
    titles = {process: " ".join(process.cmdline()) for process in cluster_process.processes()}
    return [process for process, title in titles.items() if re.match(r"ray::ServeReplica:\w+:Replica\b", title)]


def streamed_load(base_url: str, model: str, max_tokens: int) -> list[RequestRecord]:
    conversations = [
        Conversation(
            str(c), "load", f"You count from {c}.", tuple(Exchange("Go on.", "More.") for _ in range(NUM_TURNS))
        )
        for c in range(NUM_CLIENTS)
    ]

    async def play() -> list[RequestRecord]:
        async with LoadClient(base_url, model, max_tokens=max_tokens) as client:
            return await client.play(conversations, concurrency=NUM_CLIENTS, on_record=lambda record: None)

    return asyncio.run(play())


def whole_answers(cluster: ClusterClient, number: int) -> list[Answer]:
    return [cluster.complete(f"Tell number {number}.{turn} a story.", max_tokens=16) for turn in range(NUM_TURNS)]


def test_a_replica_killed_under_load(
    cluster: ClusterClient, cluster_process: ClusterProcess, unseen_prompt: Callable[[int], list[int]]
) -> None:
    prompts = [unseen_prompt(PROMPT_TOKENS) for _ in range(6)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        held_by = [
            answer.replica for answer in pool.map(lambda prompt: cluster.complete(prompt, max_tokens=1), prompts)
        ]
    assert set(held_by) == cluster.replicas()

    with ThreadPoolExecutor(NUM_CLIENTS + 1) as pool:
        streamed: Future[list[RequestRecord]] = pool.submit(streamed_load, cluster.base_url, cluster.model, 24)
        whole = [pool.submit(whole_answers, cluster, number) for number in range(NUM_CLIENTS)]
        cluster.wait_until(lambda: both_are_busy(cluster), "both replicas run requests")
        before_ids = cluster.replicas()
        victim_process = replica_processes(cluster_process)[0]
        victim_process.send_signal(signal.SIGKILL)
        records = streamed.result()
        answers = [answer for future in whole for answer in future.result()]  # raises where one was no 200

    assert len(answers) == NUM_CLIENTS * NUM_TURNS
    assert len(records) == NUM_CLIENTS * NUM_TURNS
    broken = [record for record in records if record.error is not None]
    assert [record for record in broken if not record.text] == [], "a request that had got nothing failed"
    for record in broken:  # those that had got something end with an error event, never with a false finish (54)
        assert record.finish_reason is None
        assert "stream ended" not in record.error and "HTTP" not in record.error and "Protocol" not in record.error

    (dead,) = before_ids - cluster.replicas()
    for prompt, holder in zip(prompts, held_by, strict=True):
        answer = cluster.complete(prompt, max_tokens=1)
        expected = 0 if holder == dead else cacheable_tokens(PROMPT_TOKENS)
        assert (answer.predicted_hit_tokens, answer.cached_tokens) == (expected, expected)

    cluster.wait_until(lambda: len(cluster.replicas()) == 2, "a new replica is in place of the dead one")
    assert dead not in cluster.replicas()
    fresh = [unseen_prompt(PROMPT_TOKENS) for _ in range(6)]
    with ThreadPoolExecutor(len(fresh)) as pool:
        answers = list(pool.map(lambda prompt: cluster.complete(prompt, max_tokens=1), fresh))
    assert {answer.replica for answer in answers} == cluster.replicas()


def both_are_busy(cluster: ClusterClient) -> bool:
    running = cluster.metrics().by_label("warmlane_running_requests", "replica")
    return len(running) == 2 and all(running.values())
