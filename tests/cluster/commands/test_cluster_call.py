"""What the command line says where the other end is no cluster."""

from pathlib import Path

import pytest

from cluster.commands.cli import main
from cluster.commands.cluster_call import ClusterRefused, ask_cluster
from tests.cluster.commands.stub_cluster import StubCluster


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>no such page</html>"),
        (404, b'{"error": {"message": "Not Found: GET /admin/policy", "type": "invalid_request_error"}}'),
        (405, b'{"detail": "Method Not Allowed"}'),
        (500, b'{"error": "boom"}'),
        (502, b""),
        (200, b"<html>hello</html>"),
        (200, b"{}"),
        (200, b"[1]"),
        (302, b""),
    ],
)
@pytest.mark.parametrize("arguments", [["show"], ["set", "lmetric"]])
def test_an_answer_that_no_cluster_gives_is_named_as_such(
    capsys: pytest.CaptureFixture[str], server: StubCluster, status: int, body: bytes, arguments: list[str]
) -> None:
    server.answer = (status, body)
    assert main(["policy", *arguments, "--url", server.url + "/"]) == 1
    expected = f"warmlane: {server.url} answered {status} to /admin/policy: is this a Warmlane cluster?\n"
    assert capsys.readouterr().err == expected


def test_the_words_of_a_cluster_that_refuses_are_handed_on(server: StubCluster) -> None:
    server.answer = (400, b'{"error": {"message": "no such policy"}}')
    with pytest.raises(ClusterRefused, match=r"^no such policy$"):
        ask_cluster(server.url, "/admin/policy", {})


@pytest.mark.parametrize("url", ["nonsense", "127.0.0.1:8000", "ftp://127.0.0.1", ""])
def test_a_url_without_its_scheme_is_refused(url: str) -> None:
    with pytest.raises(ClusterRefused, match=f"--url must begin with http:// or https://, got '{url}'"):
        ask_cluster(url, "/admin/policy")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://", "http://[::1", "http://a" + "b" * 80 + ".invalid"])
def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert main(["policy", "show", "--url", url]) == 1
    error = capsys.readouterr().err
    assert error.startswith("warmlane: ")
    assert "gave no answer" in error
    assert error.count("\n") == 1


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterRefused, match=r"cannot read the key file .*none: No such file"):
        ask_cluster("http://127.0.0.1:1", "/admin/policy", key_file=tmp_path / "none")
