"""Faults that users of other servers reported, at the HTTP door of a live cluster."""

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.cluster_client import ClusterClient, cacheable_tokens

WINDOW = 8192


@pytest.mark.parametrize("num_tokens", [16, 32, 48, 31, 33])
def test_case_2_a_prompt_of_whole_blocks_sent_twice(
    num_tokens: int, cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    """So short a hit weighs little, so a load may send the second one elsewhere; the third meets one of the two."""
    prompt = unseen_prompt(num_tokens)
    answers = [cluster.complete(prompt, max_tokens=1) for _ in range(3)]
    warm: set[str] = set()
    for answer in answers:
        assert answer.cached_tokens == (cacheable_tokens(num_tokens) if answer.replica in warm else 0)
        assert answer.text == answers[0].text
        warm.add(answer.replica)
    assert len(warm) < len(answers)


@pytest.mark.parametrize("prompt", ["", [""], [], [[]]], ids=repr)
def test_case_11_an_empty_prompt_is_refused_and_the_next_request_works(prompt: Any, cluster: ClusterClient) -> None:
    body = {"model": cluster.model, "prompt": prompt, "max_tokens": 1}
    response = cluster.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert cluster.complete("Hello", max_tokens=1).completion_tokens == 1


@pytest.mark.parametrize("stream", [True, False])
def test_case_53_a_deadline_that_the_client_set(stream: bool, cluster: ClusterClient) -> None:
    """The answer is cut in the form that clients know, and not by Ray."""
    body = cluster.completion_body("Hello", stream=stream, max_tokens=4000, ignore_eos=True)
    response = cluster.http.post("/v1/completions", json=body, headers={"x-request-timeout-seconds": "1.5"})
    assert response.status_code == (200 if stream else 408)
    if stream:
        last = response.text.strip().splitlines()[-1]
        assert len(response.text.splitlines()) > 2
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        error = response.json()["error"]
    assert error["code"] == "deadline_exceeded"


@pytest.mark.parametrize("stream", [True, False])
def test_case_14_a_prompt_longer_than_the_window(
    stream: bool, cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    before = cluster.metrics()
    response = cluster.http.post("/v1/completions", json=cluster.completion_body(unseen_prompt(9000), stream=stream))
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert "9000" in error["message"]
    assert str(WINDOW) in error["message"]
    assert cluster.metrics().since(before).total("warmlane_prompt_tokens_total") == 0


@pytest.mark.parametrize("stream", [True, False])
def test_case_14_a_chat_longer_than_the_window(stream: bool, cluster: ClusterClient) -> None:
    messages = [{"role": "user", "content": "word " * 9000}]
    response = cluster.http.post("/v1/chat/completions", json=cluster.chat_body(messages, stream=stream))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        "context_length_exceeded",
        "messages",
    )


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"model":"x", x}', "application/json"),
        (b"", "application/json"),
        (b"[]", "application/json"),
        (b'"str"', "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"model":"x"}', "text/plain"),
    ],
    ids=["not JSON", "empty", "a list", "a string", "not UTF-8", "wrong content type"],
)
def test_case_16_a_malformed_body_is_a_json_error_and_the_connection_stays_usable(
    path: str, body: bytes, content_type: str, cluster: ClusterClient
) -> None:
    host, port = cluster.base_url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("POST", path, body, {"content-type": content_type})
    socket = connection.sock
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    assert response.status in (400, 415, 422)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"

    good = json.dumps(cluster.completion_body("Hello", max_tokens=1)).encode()
    connection.request("POST", "/v1/completions", good, {"content-type": "application/json"})
    assert connection.sock is socket, "the server closed the connection"
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_case_31_a28_cached_tokens_is_an_integer_in_every_mode(path: str, cluster: ClusterClient) -> None:
    """The same long prompt cold and warm, streamed and not: 0 first, then the same number in both modes."""
    text = f"Case 31 at {path}. " + "The river runs through the valley and past the old mill. " * 24

    def ask(stream: bool) -> int:
        fields: dict[str, Any] = {"max_tokens": 1, "stream": stream}
        if stream:
            fields["stream_options"] = {"include_usage": True}
        if path.endswith("chat/completions"):
            body = cluster.chat_body(
                [{"role": "system", "content": text}, {"role": "user", "content": "Why?"}], **fields
            )
        else:
            body = cluster.completion_body(text, **fields)
        response = cluster.http.post(path, json=body)
        assert response.status_code == 200, response.text
        if stream:
            events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
            assert events[-1] == "[DONE]"
            body = json.loads(events[-2])
            assert body["choices"] == []
        else:
            body = response.json()
        number = body["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert type(number) is int
        return number

    cold = ask(stream=False)
    warm_whole, warm_stream = ask(stream=False), ask(stream=True)
    assert cold < warm_whole == warm_stream
    if not path.endswith("chat/completions"):
        assert cold == 0
