"""What `warmlane explain` sends, and what a person sees of the answer."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cache.kv_cache_manager import PrefixOverlap
from cluster.commands.cli import main
from cluster.commands.explain import request_body
from cluster.commands.explanation_table import strip
from cluster.serving.explain_api import PromptSegment, prompt_segments
from tests.cluster.commands.stub_cluster import StubCluster

EXPLANATION = {
    "replica_id": "r-b", "policy": "expected_finish", "outcome": "warm", "rung": "fresh", "reason": "0.05 s: all there",
    "num_tokens": 2000, "block_size": 16,
    "scores": [
        {"replica_id": "r-a", "score": 12.3456, "hit_blocks": 0, "num_running": 1, "num_waiting": 2,
         "queued_prefill_tokens": 3456, "parts": {"queue": 12.0, "prefill": 0.3456}},
        {"replica_id": "r-b", "score": None, "hit_blocks": 100, "num_running": 0, "num_waiting": 0,
         "queued_prefill_tokens": 0, "parts": {}},
    ],
    "caches": [
        {"replica_id": "r-a", "reusable_tokens": None, "equal_tokens": None, "computed_tokens": None, "pages": None},
        {"replica_id": "r-b", "reusable_tokens": 1600, "equal_tokens": 1603, "computed_tokens": 400, "pages": [
            {"state": "reusable", "first_token": 0, "num_tokens": 1600, "first_block": 0, "num_blocks": 100},
            {"state": "equal", "first_token": 1600, "num_tokens": 3, "first_block": 100, "num_blocks": 1},
            {"state": "different", "first_token": 1603, "num_tokens": 397, "first_block": 100, "num_blocks": 25},
        ]},
    ],
}  # fmt: skip


@pytest.fixture
def explaining(server: StubCluster) -> StubCluster:
    server.answer = (200, json.dumps({"object": "list", "data": [EXPLANATION]}).encode())
    server.answers["/v1/models"] = (200, json.dumps({"object": "list", "data": [{"id": "served"}]}).encode())
    return server


def asked_of(server: StubCluster) -> list[tuple[str, str | None, Any]]:
    return [(path, key, json.loads(body) if body else None) for _, path, key, body in server.asked]


def test_a_text_is_a_message_to_the_model_that_is_served(
    explaining: StubCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "What is a cache?", "--url", explaining.url]) == 0
    body = {"messages": [{"role": "user", "content": "What is a cache?"}], "model": "served"}
    assert asked_of(explaining) == [("/v1/models", None, None), ("/v1/explain", None, body)]
    shown = capsys.readouterr().out
    assert "2,000 tokens in 125 blocks of 16. expected_finish would take r-b (warm, index fresh): 0.05 s" in shown
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert rows[:2] == [
        ["r-a", "12.3", "12", "0.346", "1", "2", "3,456", "0"],
        ["→ r-b", "-", "-", "-", "0", "0", "0", "1,600"],
    ]
    assert rows[2][:2] == ["r-a", "did not answer"]
    assert rows[3][:4] == ["→ r-b", "█" * 31 + "▒" + "░" * 8, "1,600", "400"]
    assert [row[4] for row in rows[3:]] == [
        "reusable 0-1599 (100 blocks)", "equal 1600-1602 (in block 100)", "different 1603-1999 (25 blocks)",
    ]  # fmt: skip


def test_the_plan_says_what_lies_in_colder_tiers_and_what_could_be_taken(
    server: StubCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (dict(score) for score in EXPLANATION["scores"])
    first |= {"pull_tokens": 1600, "pull_from": "r-b", "pull_seconds": 0.0612}
    second |= {"host_blocks": 20, "disk_blocks": 1, "restore_seconds": 0.03}
    explanation = EXPLANATION | {"scores": [first, second]}
    server.answer = (200, json.dumps({"object": "list", "data": [explanation]}).encode())
    assert main(["explain", '{"model": "served", "prompt": "x"}', "--url", server.url]) == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert ["r-a", "0", "0", "0", "-", "1,600", "r-b", "0.0612", "400"] in rows
    assert ["→ r-b", "1,264", "320", "16", "0.03", "0", "-", "-", "400"] in rows


def test_a_body_goes_as_it_is_and_a_file_is_read(
    explaining: StubCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "mine", "prompt": [1, 2], "cache_salt": "s"}
    assert main(["explain", json.dumps(body), "--url", explaining.url]) == 0
    file, key = tmp_path / "prompt.txt", tmp_path / "key"
    file.write_text("Once upon")
    key.write_text("wl-1\n")
    options = ["--completion", "--model", "named", "--key-file", str(key), "--url", explaining.url, "--json"]
    capsys.readouterr()
    assert main(["explain", "--file", str(file), *options]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == [EXPLANATION]
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe"))
    assert main(["explain", "--file", "-", *options]) == 0
    assert asked_of(explaining) == [
        ("/v1/explain", None, body),
        ("/v1/explain", "Bearer wl-1", {"prompt": "Once upon", "model": "named"}),
        ("/v1/explain", "Bearer wl-1", {"prompt": "From a pipe", "model": "named"}),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([" "], "the text is empty"),
        (['{"model": '], "the body is no JSON"),
        (["--file", "/nonexistent"], "cannot read /nonexistent: No such file"),
        (["hi", "--model", "m", "--url", "nonsense"], "--url must begin with http://"),
        (["hi", "--url", "http://127.0.0.1:1"], "gave no answer"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["explain", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("warmlane: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("answer", [{}, {"data": [{}]}, {"data": [{"id": "x"}]}])
def test_an_answer_that_explains_nothing_is_no_cluster(
    explaining: StubCluster, capsys: pytest.CaptureFixture[str], answer: Any
) -> None:
    explaining.answer = (200, json.dumps(answer).encode())
    assert main(["explain", "hi", "--url", explaining.url]) == 1
    assert "is this a Warmlane cluster?" in capsys.readouterr().err


def test_text_that_only_looks_like_nothing_special_is_text() -> None:
    assert request_body("[1, 2]")["messages"][0]["content"] == "[1, 2]"
    assert request_body('  {"prompt": "a"}') == {"prompt": "a"}


@pytest.mark.parametrize("reusable", [0, 16, 1984, 1600])
@pytest.mark.parametrize("more", [0, 1, 16])
def test_a_strip_has_one_width_and_shows_every_run(reusable: int, more: int) -> None:
    runs = prompt_segments(2000, 16, PrefixOverlap(reusable, reusable + more))
    assert sum(run.num_tokens for run in runs) == 2000
    shown = strip([{"state": run.state, "num_tokens": run.num_tokens} for run in runs], 2000)
    assert len(shown) == 40
    assert len(set(shown)) == len(runs)


def test_runs_tell_the_blocks_they_lie_in() -> None:
    assert prompt_segments(10, 4, PrefixOverlap(4, 6)) == [
        PromptSegment("reusable", 0, 4, 0, 1),
        PromptSegment("equal", 4, 2, 1, 1), PromptSegment("different", 6, 4, 1, 2),
    ]  # fmt: skip
    assert prompt_segments(4, 4, PrefixOverlap(0, 4)) == [PromptSegment("equal", 0, 4, 0, 1)]
