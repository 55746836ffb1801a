"""What `warmlane policy` sends, and what it says of the answer."""

from typing import Any

import httpx
import pytest

from cluster.commands.cli import main
from cluster.commands.policy import parse_weights
from tests.cluster.commands.stub_cluster import StubCluster


def summary(**changes: Any) -> bytes:
    here = {
        "process": "ingress-0", "policy": "lmetric", "weights": {"count_waiting": 0.0}, "revision": 5,
        "refused_user_config": None,
    }  # fmt: skip
    answer = {"policy": "lmetric", "weights": {"count_waiting": 0.0}, "agreed": True, "ingresses": [here], "errors": []}
    return httpx.Response(200, json=answer | changes).content


def test_the_command_sets_and_shows(server: StubCluster, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer = (200, summary())
    assert main(["policy", "set", "lmetric", "count_waiting=0", "--url", server.url]) == 0
    assert main(["policy", "show", "--url", server.url]) == 0
    assert server.asked == [
        ("POST", "/admin/policy", None, b'{"policy":"lmetric","weights":{"count_waiting":0.0}}'),
        ("GET", "/admin/policy", None, b""),
    ]
    shown = capsys.readouterr().out
    assert shown.count("lmetric, in 1 ingress") == 2
    assert shown.count("│ count_waiting │     0 │       1 │") == 2


def test_the_command_fails_where_ingresses_disagree(server: StubCluster, capsys: pytest.CaptureFixture[str]) -> None:
    other = {
        "process": "ingress-1", "policy": "random", "weights": {}, "revision": 0, "refused_user_config": "no such",
    }  # fmt: skip
    server.answer = (200, summary(agreed=False, ingresses=[other], errors=["TimeoutError()"]))
    assert main(["policy", "show", "--url", server.url]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "warmlane: an ingress did not answer: TimeoutError()",
        "warmlane: ingress-1 still has random {}",
        "warmlane: ingress-1 refused its user_config: no such",
    ]


@pytest.mark.parametrize("argument", ["speed", "=1", "speed=", "speed=fast", "speed=1=2", "speed=nan", "speed=inf"])
def test_weights_are_name_and_number(argument: str) -> None:
    with pytest.raises(ValueError, match="a weight must be written as name=number"):
        parse_weights([argument])
