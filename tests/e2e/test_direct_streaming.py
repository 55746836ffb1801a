"""A cluster of its own in which answers go from the replicas to HAProxy, past the ingress."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import BLOCK_SIZE, ClusterClient, cacheable_tokens
from tests.e2e.running_cluster import running_cluster
from tests.e2e.test_client_gone import Leaver, leaving
from tests.e2e.test_replica_death import replica_processes

pytestmark = pytest.mark.long

ARGUMENTS = ("--replicas", "2", "--num-blocks", "1100", "--max-num-seqs", "4", "--transport", "direct")


@pytest.fixture(scope="module")
def direct_process(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with running_cluster(ARGUMENTS, tmp_path_factory.mktemp("direct")) as process:
        yield process


@pytest.fixture(scope="module")
def direct_client(direct_process: ClusterProcess) -> ClusterClient:
    return ClusterClient(direct_process.base_url)


@pytest.fixture
def direct(direct_client: ClusterClient) -> Iterator[ClusterClient]:
    """Idle before and after each test."""
    direct_client.wait_idle()
    yield direct_client
    direct_client.wait_idle()


def through_the_ingress(cluster: ClusterClient, body: dict[str, Any]) -> httpx.Response:
    """A body without a length cannot be shown to an ingress first, so the answer comes by a Serve stream."""
    headers = {"content-type": "application/json"}
    return cluster.http.post("/v1/completions", content=iter([json.dumps(body).encode()]), headers=headers)


def text_of(response: httpx.Response) -> str:
    """The text of an answer, streamed or not."""
    assert response.status_code == 200, response.text
    if response.headers["content-type"].startswith("application/json"):
        return str(response.json()["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answers_are_those_of_the_handle_transport(
    stream: bool, direct: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    before = direct.metrics()
    body = direct.completion_body(unseen_prompt(100), max_tokens=24, stream=stream)
    answers = [direct.http.post("/v1/completions", json=body), through_the_ingress(direct, body)]
    texts = [text_of(answer) for answer in answers]
    assert texts[0] == texts[1] != ""
    assert {answer.headers["x-warmlane-replica"] for answer in answers} <= direct.replicas()
    grown = direct.metrics().since(before)
    assert grown.total("warmlane_transport_requests_total", transport="direct") == 1
    assert grown.total("warmlane_transport_requests_total", transport="handle") == 1
    assert grown.total("warmlane_direct_fallbacks_total", reason="body") == 1
    assert grown.total("warmlane_requests_total", finish_reason="length") == 2


def test_a_chats_next_turn_goes_where_its_pages_are(direct: ClusterClient) -> None:
    chat = [{"role": "user", "content": "Name the rivers of the northern plains, the largest first. " * 8}]
    first = direct.chat(chat, max_tokens=24)
    turn = [*chat, {"role": "assistant", "content": first.text}, {"role": "user", "content": "And their lakes?"}]
    second = direct.chat(turn, max_tokens=4)
    assert (second.outcome, second.replica) == ("warm", first.replica)
    assert abs(second.predicted_hit_tokens - second.cached_tokens) <= BLOCK_SIZE
    assert second.cached_tokens >= first.prompt_tokens - 2 * BLOCK_SIZE


def test_replicas_are_predicted_exactly(direct: ClusterClient, unseen_prompt: Callable[[int], list[int]]) -> None:
    prompts = [unseen_prompt(256) for _ in range(4)]
    with ThreadPoolExecutor(len(prompts)) as pool:  # at once, so that both replicas get some
        first = list(pool.map(lambda prompt: direct.complete(prompt, max_tokens=1), prompts))
    assert {answer.replica for answer in first} == direct.replicas()
    for prompt, before in zip(prompts, first, strict=True):
        answer = direct.complete(prompt, max_tokens=1)
        assert (answer.outcome, answer.replica) == ("warm", before.replica)
        assert answer.predicted_hit_tokens == answer.cached_tokens == cacheable_tokens(256)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_case_24_gone_while_decoding(
    stream: bool, direct: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    before = direct.metrics()
    client = Leaver(direct, unseen_prompt(40), stream=stream)
    with leaving(client):
        direct.wait_until(
            lambda: direct.metrics().since(before).total("warmlane_generated_tokens_total") >= 3, "three tokens"
        )
        client.leave()
    grown = direct.wait_idle().since(before)
    assert grown.total("warmlane_requests_total", finish_reason="abort") == 1
    assert grown.total("warmlane_transport_requests_total", transport="direct") == 1


def test_the_ports_of_the_replicas_refuse_what_no_ingress_sent(
    direct: ClusterClient, direct_process: ClusterProcess
) -> None:
    body = direct.completion_body("Hello", max_tokens=1)
    processes = replica_processes(direct_process)
    assert len(processes) == 2
    for process in processes:
        refusals = [answer for port in listening_ports(process) if (answer := answer_of(port, body)) is not None]
        assert [(each.status_code, each.json()["error"]["code"]) for each in refusals] == [(403, "not_routed")]


def listening_ports(process: psutil.Process) -> list[int]:
    found = [each.laddr for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    assert {address.ip.removeprefix("::ffff:") for address in found} == {"127.0.0.1"}  # gRPC's sockets are IPv6
    return [address.port for address in found]


def answer_of(port: int, body: dict[str, Any]) -> httpx.Response | None:
    """None from a port that speaks no HTTP/1.1."""
    try:
        return httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=5.0)
    except httpx.HTTPError:
        return None


def test_a_replica_killed_takes_only_its_own_streams_along(
    direct: ClusterClient, direct_process: ClusterProcess, unseen_prompt: Callable[[int], list[int]]
) -> None:
    body = [direct.completion_body(unseen_prompt(64), max_tokens=160, ignore_eos=True, stream=True) for _ in "ab"]
    begun = [threading.Event() for _ in body]
    with ThreadPoolExecutor(len(body)) as pool:
        streams = [pool.submit(streamed, direct.base_url, *each) for each in zip(body, begun, strict=True)]
        direct.wait_until(lambda: both_run(direct), "both replicas run a request")
        # Before its first byte a stream would be taken over by the other replica.
        assert all(event.wait(30.0) for event in begun)
        replica_processes(direct_process)[0].send_signal(signal.SIGKILL)
        fresh = [direct.complete(unseen_prompt(32), max_tokens=4) for _ in range(6)]  # raises for anything but 200
        ends = [stream.result() for stream in streams]
    assert len(fresh) == 6
    assert sorted(ends) == ["broken", "whole"]  # never a false finish
    direct.wait_until(lambda: len(direct.replicas()) == 2, "a new replica is in place of the dead one", 120.0)


def both_run(cluster: ClusterClient) -> bool:
    running = cluster.metrics().by_label("warmlane_running_requests", "replica")
    return len(running) == 2 and all(running.values())


def streamed(base_url: str, body: dict[str, Any], begun: threading.Event) -> str:
    """Whether the stream came to its end, or broke off without one. begun: set with its first bytes."""
    text = ""
    try:
        with httpx.stream("POST", f"{base_url}/v1/completions", json=body, timeout=60.0) as response:
            assert response.status_code == 200
            for part in response.iter_text():
                text += part
                begun.set()
    except httpx.RemoteProtocolError:
        assert "[DONE]" not in text and '"finish_reason":"' not in text
        return "broken"
    assert text.endswith("data: [DONE]\n\n")
    return "whole"
