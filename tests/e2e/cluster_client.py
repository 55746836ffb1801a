"""What the end-to-end tests ask of a live cluster, and how they wait for it."""

from collections.abc import Callable, Sequence
from typing import Any

import httpx

from cluster.lab.metrics_snapshot import MetricsSnapshot
from tests.e2e.answer import Answer
from tests.waiting import BOUND_SECONDS, wait_until

BLOCK_SIZE = 16


def cacheable_tokens(num_tokens: int) -> int:
    """Tokens of a prompt that a warm cache gives: whole blocks, and never the last token (2)."""
    return (num_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE


class ClusterClient:
    """Sync client of one cluster. Requests are greedy unless a test says otherwise."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.http = httpx.Client(base_url=base_url, timeout=120.0)
        self.model: str = self.http.get("/v1/models").json()["data"][0]["id"]

    def completion_body(self, prompt: str | Sequence[int], **fields: Any) -> dict[str, Any]:
        prompt = prompt if isinstance(prompt, str) else list(prompt)
        return {"model": self.model, "prompt": prompt, "temperature": 0.0, **fields}

    def chat_body(self, messages: Sequence[dict[str, str]], **fields: Any) -> dict[str, Any]:
        return {"model": self.model, "messages": list(messages), "temperature": 0.0, **fields}

    def complete(self, prompt: str | Sequence[int], **fields: Any) -> Answer:
        return Answer(self.http.post("/v1/completions", json=self.completion_body(prompt, **fields)))

    def chat(self, messages: Sequence[dict[str, str]], **fields: Any) -> Answer:
        return Answer(self.http.post("/v1/chat/completions", json=self.chat_body(messages, **fields)))

    def metrics(self) -> MetricsSnapshot:
        response = self.http.get("/metrics")
        assert response.status_code == 200, response.text
        return MetricsSnapshot(response.text)

    def replicas(self) -> set[str]:
        """Ids of the engines that answered a scrape."""
        return set(self.metrics().by_label("warmlane_running_requests", "replica"))

    def wait_until(self, condition: Callable[[], Any], what: str, seconds: float = BOUND_SECONDS) -> Any:
        return wait_until(condition, what, seconds)

    def wait_idle(self) -> MetricsSnapshot:
        """Until no engine holds a request or a page, and the router no load, for one. Returns the metrics of then."""

        def idle() -> MetricsSnapshot | None:
            now = self.metrics()
            reservations = self.http.get("/debug/router").json()["open_reservations"]
            return None if is_busy(now) or reservations else now

        return self.wait_until(idle, "no request, no active page and no reservation is left")


def is_busy(now: MetricsSnapshot) -> bool:
    held = now.total("warmlane_running_requests") + now.total("warmlane_waiting_requests")
    return held + now.total("warmlane_kv_blocks", state="active") > 0
