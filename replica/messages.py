"""What crosses the border between ingress and replica. Plain data; nothing here knows tensors or HTTP."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cache.block_hasher import NO_EXTRA_KEYS, ExtraKeys
from replica.sampling_params import SamplingParams


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Where a replica gives its pages away; the handshake proves that it is this one.

    local: name of a socket that only processes of the same node reach (Linux's abstract name space, without the
    leading zero byte); empty where there is none. Whoever cannot reach it takes host and port.
    """

    replica_id: str
    host: str
    port: int
    local: str = ""

    def to_text(self) -> str:
        """What a registration carries."""
        return f"{self.host} {self.port} {self.local}"

    @classmethod
    def from_text(cls, replica_id: str, text: str) -> "PageAddress":
        """Raises ValueError for what `to_text` does not write."""
        host, port, local = text.split(" ")
        return cls(replica_id, host, int(port), local)


@dataclass(frozen=True, slots=True)
class Pull:
    """What the router found another replica to hold: the prompt's first `num_tokens`, whole pages of which may be had
    there, and what it has computed of the prompt since. What the engine has itself, or cannot get in time, is not
    pulled."""

    source: PageAddress
    num_tokens: int


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One prompt for one engine, already templated and tokenised.

    request_id: unique in the cluster, made by the ingress, never by the client (39).
    arrival_seconds: `time.monotonic()` of its arrival at the ingress; TTFT and total latency count from here.
    deadline_seconds: `time.monotonic()` after which the request must not be computed any more; None is no deadline.
    Both are on the clock of the process that holds the message. Machines' clocks differ, so between processes they are
    durations: what is sent is `leaving()`, what came is `arrived()`.
    session_id: whose prompts belong together, as the client says; for the router only.
    priority: lower is served earlier. pull: where cached pages of the prompt may be had that this replica lacks.
    """

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    arrival_seconds: float
    extra_keys: ExtraKeys = NO_EXTRA_KEYS
    deadline_seconds: float | None = None
    session_id: str | None = None
    priority: int = 0
    pull: Pull | None = None

    def leaving(self) -> "GenerateRequest":
        """As it crosses to another process: seconds from now, the arrival's below 0."""
        return self._moved(-time.monotonic())

    def arrived(self) -> "GenerateRequest":
        """What `leaving` gave, on this process's clock. The time on the way is given to the request."""
        return self._moved(time.monotonic())

    def _moved(self, seconds: float) -> "GenerateRequest":
        deadline = None if self.deadline_seconds is None else self.deadline_seconds + seconds
        return replace(self, arrival_seconds=self.arrival_seconds + seconds, deadline_seconds=deadline)


@dataclass(frozen=True, slots=True)
class Usage:
    """prompt_tokens = cached_tokens + tokens computed for this request, counted once at its first admission."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model held a token to be, and the likeliest (token id, logprob) pairs, the first the likeliest."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """What became visible of one request since the chunk before. The last one carries finish_reason and usage.

    text may be empty (a character or a possible stop string is still incomplete).
    error: a message for the client when finish_reason is error, timeout or rejected.
    logprobs: one per token of token_ids where they were asked for, else empty.
    prompt_logprobs: in the first chunk, one per prompt token from the second on, where they were asked for.
    """

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    error: str | None = None
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class ChannelAddress:
    """Where a replica listens for side channels; the handshake proves that it is this one."""

    replica_id: str
    host: str
    port: int
