"""What a workload is made of, whatever file or generator it came from."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from cache.block_hasher import BlockHasher


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """prompt_ids: token ids. num_new_tokens: tokens of the answer, at least 1.

    answer_ids: what the answer will be, where later prompts repeat it; empty stands for tokens that nobody repeats.
    session: requests of one session follow each other; empty where the request stands alone.
    at_seconds: when the trace recorded it; None for traces without times.
    """

    prompt_ids: Sequence[int]
    num_new_tokens: int
    answer_ids: Sequence[int] = ()
    session: str = ""
    at_seconds: float | None = None


@dataclass(frozen=True)
class Trace:
    """Requests in their recorded order. origin: source and licence, for reports.

    Raises ValueError for a trace without requests, for a request without prompt or answer, and for recorded times that
    go back: arrivals would lie before the start.
    """

    name: str
    requests: Sequence[TraceRequest]
    origin: str = ""

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError(f"trace {self.name} has no requests")
        for number, request in enumerate(self.requests):
            if not request.prompt_ids or request.num_new_tokens < 1:
                raise ValueError(f"request {number} of trace {self.name} needs a prompt and at least 1 new token")
        times = [request.at_seconds for request in self.requests if request.at_seconds is not None]
        for number, (before, after) in enumerate(pairwise(times), start=1):
            if after < before:
                raise ValueError(f"request {number} of trace {self.name} is recorded before the one in front of it")

    @cached_property
    def longest_tokens(self) -> int:
        """Prompt and answer of the longest request."""
        return max(len(request.prompt_ids) + request.num_new_tokens for request in self.requests)

    @cached_property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt_ids) for request in self.requests)

    @cached_property
    def recorded_seconds(self) -> float:
        """From the first request to the last; 0 for traces that do not know, or know only one moment."""
        times = [request.at_seconds for request in self.requests if request.at_seconds is not None]
        return times[-1] - times[0] if len(times) == len(self.requests) else 0.0

    @cached_property
    def num_sessions(self) -> int:
        """A request without session is one by itself."""
        named = [request.session for request in self.requests if request.session]
        return len(set(named)) + len(self.requests) - len(named)

    def num_unique_blocks(self, hasher: BlockHasher) -> int:
        """Different full blocks of all prompts: what a cache would have to hold to forget nothing."""
        return len({key for request in self.requests for key in hasher.keys(request.prompt_ids)})

    def head(self, num_requests: int) -> "Trace":
        return self if num_requests >= len(self.requests) else self._with(self.requests[:num_requests])

    def at_most(self, max_tokens: int) -> "Trace":
        """Without the requests that do not fit a window of so many tokens."""
        return self._with([r for r in self.requests if len(r.prompt_ids) + r.num_new_tokens <= max_tokens])

    def _with(self, requests: Sequence[TraceRequest]) -> "Trace":
        return Trace(self.name, requests, self.origin)


def by_time(requests: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Sorted by the recorded times, which are counted from the first; equal times keep their order."""
    found = sorted(requests, key=lambda request: request.at_seconds or 0.0)
    start = found[0].at_seconds or 0.0 if found else 0.0
    return [replace(request, at_seconds=(request.at_seconds or 0.0) - start) for request in found]


TextTokenizer = Callable[[str], list[int]]
"""Text to token ids. The simulator needs only that equal texts give equal ids."""
