"""`warmlane explain` against a real cluster: what it says is what the next request finds."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.e2e.cluster_client import BLOCK_SIZE, ClusterClient

COMMAND = "import sys; from cluster.commands.cli import main; sys.exit(main())"


def explain(cluster: ClusterClient, body: dict[str, Any], *options: str) -> str:
    arguments = ["explain", json.dumps(body), "--url", cluster.base_url, *options]
    done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_explanation_is_what_then_happens(cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]) -> None:
    prompt = unseen_prompt(10 * BLOCK_SIZE + 5)
    cluster.complete(prompt, max_tokens=1)
    at = 6 * BLOCK_SIZE + 7
    asked = [*prompt[:at], 99, *prompt[at + 1 :]]
    body = cluster.completion_body(asked, max_tokens=1)
    before = cluster.metrics().total("warmlane_prompt_tokens_total")
    (explanation,) = json.loads(explain(cluster, body, "--json"))["data"]
    found = {cache["replica_id"]: (cache["reusable_tokens"], cache["equal_tokens"]) for cache in explanation["caches"]}
    assert sorted(found.values()) == [(0, 0), (6 * BLOCK_SIZE, at)]
    assert set(found) == cluster.replicas()
    assert cluster.metrics().total("warmlane_prompt_tokens_total") == before  # nothing was run
    shown = explain(cluster, body)
    assert f"equal {6 * BLOCK_SIZE}-{at - 1} (in block 6)" in shown
    answer = cluster.complete(asked, max_tokens=1)
    assert answer.cached_tokens == found[answer.replica][0]
