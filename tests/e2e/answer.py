"""One answer of a live cluster with the decision that its headers tell."""

from typing import Any

import httpx


class Answer:
    """replica, outcome, predicted_hit_tokens: the router's decision. cached_tokens: what the engine then found."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200, response.text
        self.body: dict[str, Any] = response.json()
        self.replica = response.headers["x-warmlane-replica"]
        self.outcome = response.headers["x-warmlane-decision-outcome"]
        self.predicted_hit_tokens = int(response.headers["x-warmlane-predicted-hit-tokens"])

    @property
    def text(self) -> str:
        (choice,) = self.body["choices"]
        return choice["text"] if "text" in choice else choice["message"]["content"]

    @property
    def finish_reason(self) -> str:
        return self.body["choices"][0]["finish_reason"]

    @property
    def prompt_tokens(self) -> int:
        return self.body["usage"]["prompt_tokens"]

    @property
    def completion_tokens(self) -> int:
        return self.body["usage"]["completion_tokens"]

    @property
    def cached_tokens(self) -> int:
        return self.body["usage"]["prompt_tokens_details"]["cached_tokens"]
