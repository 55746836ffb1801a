"""Faults that users of other servers reported, at the HTTP door of a live cluster."""

import http.client
import json

import pytest

from tests.e2e.cluster_client import ClusterClient


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


def test_case_16_a_malformed_body_is_a_json_error_and_the_connection_stays_usable(cluster: ClusterClient) -> None:
    """Which bodies are refused, and with which words, is tested without a cluster."""
    host, port = cluster.base_url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("POST", "/v1/completions", b'{"model":"x", x}', {"content-type": "application/json"})
    socket = connection.sock
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    assert response.status == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"

    good = json.dumps(cluster.completion_body("Hello", max_tokens=1)).encode()
    connection.request("POST", "/v1/completions", good, {"content-type": "application/json"})
    assert connection.sock is socket, "the server closed the connection"
    assert connection.getresponse().status == 200
    connection.close()
