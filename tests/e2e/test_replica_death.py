"""One replica is killed under load: nobody who had received nothing notices, and the cluster becomes whole again."""

import asyncio
import re
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil

from cluster.lab.cluster_process import ClusterProcess
from cluster.lab.conversations import Conversation, Exchange
from cluster.lab.load_client import LoadClient, RequestRecord
from tests.e2e.cluster_client import ClusterClient, cacheable_tokens, cached_tokens

NUM_CLIENTS, NUM_TURNS = 5, 3


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


def whole_answers(cluster: ClusterClient, number: int) -> list[dict[str, Any]]:
    return [cluster.complete(f"Tell number {number}.{turn} a story.", max_tokens=16) for turn in range(NUM_TURNS)]


def holders(cluster: ClusterClient, prompts: list[list[int]]) -> dict[int, str]:
    """Which replica each prompt is warm on, by number of the prompt; each is sent once more for it."""
    found = {}
    for number, prompt in enumerate(prompts):
        before = cluster.metrics()
        assert cached_tokens(cluster.complete(prompt, max_tokens=1)) == cacheable_tokens(len(prompt))
        used = cluster.metrics().since(before).by_label("warmlane_prompt_tokens_total", "replica")
        found[number] = max(used, key=lambda replica: used[replica])
    return found


def test_a_replica_killed_under_load(
    cluster: ClusterClient, cluster_process: ClusterProcess, unseen_prompt: Callable[[int], list[int]]
) -> None:
    prompts = [unseen_prompt(64) for _ in range(8)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(lambda prompt: cluster.complete(prompt, max_tokens=1), prompts))
    held_by = holders(cluster, prompts)
    assert set(held_by.values()) == cluster.replicas()

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
    for number, holder in held_by.items():
        before = cluster.metrics()
        answer = cluster.complete(prompts[number], max_tokens=1)
        predicted = cluster.metrics().since(before).total("warmlane_route_predicted_hit_tokens_total")
        assert predicted == cached_tokens(answer) == (0 if holder == dead else cacheable_tokens(64))

    cluster.wait_until(lambda: len(cluster.replicas()) == 2, "a new replica is in place of the dead one", 120.0)
    assert dead not in cluster.replicas()
    before = cluster.metrics()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda prompt: cluster.complete(prompt, max_tokens=1), [unseen_prompt(64) for _ in range(8)]))
    used = cluster.metrics().since(before).by_label("warmlane_prompt_tokens_total", "replica")
    assert {replica for replica, tokens in used.items() if tokens} == cluster.replicas()


def both_are_busy(cluster: ClusterClient) -> bool:
    running = cluster.metrics().by_label("warmlane_running_requests", "replica")
    return len(running) == 2 and all(running.values())
