"""One request inside one engine, and when things happened to it."""

from dataclasses import dataclass
from enum import Enum, auto

from cache.block_hasher import BlockKey
from replica.messages import FinishReason, GenerateRequest, TokenLogprobs


@dataclass(slots=True)
class RequestTimes:
    """Seconds on the engine's clock. arrived: at the ingress. queued: at this engine. last_token: None before it."""

    arrived: float
    queued: float
    last_token: float | None = None


class RequestState(Enum):
    """LOADING: its pages are taken, and the content of some is under way from a colder tier or another replica."""

    WAITING = auto()
    LOADING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Request:
    """What the engine knows of a request; only the engine's thread touches it.

    token_ids: prompt and generated tokens. num_computed_tokens: leading tokens whose K/V lie in the request's pages.
    num_cached_at_arrival: what a match would have given when the request was queued; num_found_at_arrival is that and
    what others were about to compute of its prompt.
    num_cached_tokens: tokens served from cached pages at the first admission, loaded ones included; None before it.
    num_loading_pages: behind the computed tokens, on their way while it is LOADING. block_keys: keys of the
    full blocks of token_ids, extended as tokens come. root_key: of their name space, for explanations. prompt_logprobs:
    of the prompt's tokens from the second on, as far as they are computed. rank: whose prompt is computed first, set by
    the scheduler; lower is earlier.
    """

    def __init__(
        self, message: GenerateRequest, max_total_tokens: int, block_keys: list[BlockKey], root_key: BlockKey = b""
    ):
        self.id = message.request_id
        self.message = message
        self.sampling = message.sampling
        self.token_ids = list(message.token_ids)
        self.num_prompt_tokens = len(message.token_ids)
        self.max_total_tokens = max_total_tokens
        self.block_keys = block_keys
        self.root_key = root_key
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None
        self.num_computed_tokens = 0
        self.num_cached_at_arrival = 0
        self.num_found_at_arrival = 0
        self.num_cached_tokens: int | None = None
        self.num_loading_pages = 0
        self.num_preemptions = 0
        self.num_skips = 0
        self.num_share_waits = 0
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.rank: tuple[int, int, int] = (message.priority, 0, 0)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """More than the one newest token is still to be computed."""
        return self.num_uncomputed_tokens > 1

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Some are still to be computed. Until then the cache must not be read: a position that is served from it has
        no logits (C43)."""
        return self.sampling.prompt_logprobs and len(self.prompt_logprobs) < self.num_prompt_tokens - 1
