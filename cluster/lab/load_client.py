"""Sends chat requests to an OpenAI-compatible endpoint, streams the answers and takes the times at the client."""

import asyncio
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import httpx

from cluster.lab.conversations import Conversation, Message


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as its client saw it. Seconds count from just before the request was sent.

    ttft_seconds: until the first chunk that carries text; None when there was none.
    error: None when the answer came whole, with its finish reason and usage.
    """

    ttft_seconds: float | None
    total_seconds: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str | None = None
    text: str = ""
    error: str | None = None


class LoadClient:
    """max_tokens, temperature and seed are the same for every request, so that two runs do the same work.

    base_url: of the server, or of several that take the requests in turn.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        model: str,
        *,
        max_tokens: int,
        seed: int = 0,
        timeout_seconds: float = 120.0,
        api_key: str | None = None,
    ) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._seed = seed
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._base_urls = cycle([base_url] if isinstance(base_url, str) else base_url)
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout_seconds, limits=limits, trust_env=False)

    async def __aenter__(self) -> "LoadClient":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._http.aclose()

    async def chat(self, messages: Sequence[Message]) -> RequestRecord:
        """One streamed greedy chat completion. Never raises for what the server or the network did: see `error`."""
        body = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": self._max_tokens,
            "temperature": 0.0,
            "seed": self._seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reader = _StreamReader()
        try:
            async with self._http.stream("POST", f"{next(self._base_urls)}/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    return reader.record(error=f"HTTP {response.status_code}: {text[:200]}")
                async for line in _lines(response.aiter_bytes()):
                    reader.feed(line)
        except httpx.HTTPError as error:
            return reader.record(error=f"{type(error).__name__}: {error}")
        return reader.record()

    async def play(
        self, conversations: Sequence[Conversation], *, concurrency: int, on_record: Callable[[RequestRecord], None]
    ) -> list[RequestRecord]:
        """Closed loop: `concurrency` users take the conversations in order and send the next request of one when the
        answer to the one before is there. Records stand in the order of the conversations' requests, not of completion.
        """
        waiting = iter(enumerate(conversations))
        played: dict[int, list[RequestRecord]] = {}

        async def user() -> None:
            for index, conversation in waiting:  # one iterator for all users: each conversation is taken once
                played[index] = []
                for messages in conversation.requests():
                    record = await self.chat(messages)
                    played[index].append(record)
                    on_record(record)

        await asyncio.gather(*(user() for _ in range(concurrency)))
        return [record for index in sorted(played) for record in played[index]]


async def _lines(parts: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """Lines as server-sent events have them. httpx's own end at U+2028 and others too, which JSON may hold."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


class _StreamReader:
    """Takes the lines of one SSE answer and says when what arrived."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._ttft: float | None = None
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._usage: dict | None = None
        self._error: str | None = None
        self._done = False

    def feed(self, line: str) -> None:
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self._done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self._error = str(chunk["error"].get("message", chunk["error"]))
            return
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            content = choice["delta"].get("content")
            if content:
                self._text.append(content)
                if self._ttft is None:
                    self._ttft = time.perf_counter() - self._start
            self._finish_reason = choice["finish_reason"] or self._finish_reason

    def record(self, error: str | None = None) -> RequestRecord:
        error = error or self._error or self._missing()
        usage = self._usage or {}
        details = usage.get("prompt_tokens_details") or {}
        return RequestRecord(
            ttft_seconds=self._ttft,
            total_seconds=time.perf_counter() - self._start,
            prompt_tokens=usage.get("prompt_tokens", 0),
            cached_tokens=details.get("cached_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            finish_reason=self._finish_reason,
            text="".join(self._text),
            error=error,
        )

    def _missing(self) -> str | None:
        for name, present in (("finish_reason", self._finish_reason), ("usage", self._usage), ("[DONE]", self._done)):
            if not present:
                return f"the stream ended without {name}"
        return None
