"""`POST /v1/explain`: what would hit where for a request, page by page, and how the policy sees it; nothing is run."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.block_hasher import ExtraKeys
from cache.kv_cache_manager import PrefixOverlap
from cluster.api.errors import SERVER_ERROR, ApiError
from cluster.api.generation_api import GenerationApi
from cluster.api.http_app import Handler
from cluster.api.limits import ApiLimits
from cluster.api.request_body import read_json_object
from cluster.api.request_context import explain_context
from cluster.serving.relay import route_request
from cluster.serving.siblings import ask_replica
from replica.messages import GenerateRequest
from router.decision import Decision
from router.prefix_router import NoReplicas, PrefixRouter, RouteRequest

State = Literal["reusable", "equal", "different"]
logger = logging.getLogger(__name__)
TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class PromptSegment:
    """Neighbouring tokens of one state, and the blocks that they lie in, wholly or in part.

    reusable: whole blocks that an engine takes from its cache. equal: tokens that lie in the cache, but in a block that
    is not equal to its end, or that holds the prompt's last token; they are computed. different: all behind them.
    """

    state: State
    first_token: int
    num_tokens: int
    first_block: int
    num_blocks: int


def prompt_segments(num_tokens: int, block_size: int, overlap: PrefixOverlap) -> list[PromptSegment]:
    """The whole prompt in at most three runs; states of no token are left out."""
    ends: tuple[tuple[State, int], ...] = (
        ("reusable", overlap.num_reusable_tokens),
        ("equal", overlap.num_equal_tokens),
        ("different", num_tokens),
    )
    runs, first = [], 0
    for state, end in ends:
        if end > first:
            block = first // block_size
            runs.append(PromptSegment(state, first, end - first, block, (end - 1) // block_size - block + 1))
            first = end
    return runs


class ExplainApi:
    """The router tells what it would decide, and every replica what its cache really holds of the prompt.

    Both look in the caller's own name space alone (tenant, `cache_salt`), so nobody learns of another tenant's pages
    (51). A replica that does not answer in time is shown without its pages.
    """

    def __init__(
        self,
        router: PrefixRouter,
        generation: GenerationApi,
        replica_handle: Any,
        block_size: int,
        limits: ApiLimits,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ):
        """replica_handle: Serve handle of the replicas. block_size: tokens of a hash block."""
        self._router = router
        self._generation = generation
        self._overlaps = replica_handle.options(method_name="cache_overlaps")
        self._block_size = block_size
        self._limits = limits
        self._timeout_seconds = timeout_seconds

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {("POST", "/v1/explain"): self.explain}

    async def explain(self, request: Request) -> Response:
        """The body of a chat or a completion; answers for each of its prompts with the decision and the caches."""
        fields = await read_json_object(request, self._limits.max_body_bytes)
        context, read = explain_context(request, fields), self._generation
        chat = "messages" in fields
        body, prompts = await (read.read_chat(fields, context) if chat else read.read_completion(fields))
        every_choice = self._generation.engine_requests(body, prompts, "explain", context)
        requests = list(islice(every_choice, 0, None, body.num_choices))
        try:
            decisions = [self._router.explain(_route_request(each)) for each in requests]
        except NoReplicas as error:
            raise ApiError(503, "No replica is running.", type=SERVER_ERROR, code="no_replica_available") from error
        replica_ids = sorted({score.replica_id for decision in decisions for score in decision.scores})
        found = await asyncio.gather(
            *(self._ask(replica_id, prompts, requests[0].extra_keys) for replica_id in replica_ids)
        )
        overlaps = dict(zip(replica_ids, found, strict=True))
        data = [self._explanation(decision, overlaps, number) for number, decision in enumerate(decisions)]
        return JSONResponse({"object": "list", "data": data})

    def _explanation(
        self, decision: Decision, overlaps: Mapping[str, Sequence[PrefixOverlap] | None], prompt: int
    ) -> dict[str, Any]:
        caches = []
        for score in decision.scores:
            answer = overlaps.get(score.replica_id)
            overlap = None if answer is None else answer[prompt]
            caches.append({"replica_id": score.replica_id, **self._cache(decision, overlap)})
        return {**decision.to_dict(), "block_size": self._block_size, "caches": caches}

    def _cache(self, decision: Decision, overlap: PrefixOverlap | None) -> dict[str, Any]:
        if overlap is None:
            return {"reusable_tokens": None, "equal_tokens": None, "computed_tokens": None, "pages": None}
        return {
            "reusable_tokens": overlap.num_reusable_tokens,
            "equal_tokens": overlap.num_equal_tokens,
            "computed_tokens": decision.num_tokens - overlap.num_reusable_tokens,
            "pages": [asdict(run) for run in prompt_segments(decision.num_tokens, self._block_size, overlap)],
        }

    async def _ask(
        self, replica_id: str, prompts: Sequence[list[int]], extra_keys: ExtraKeys
    ) -> list[PrefixOverlap] | None:
        """One replica about all prompts; None where it did not answer."""
        try:
            found: list[PrefixOverlap] = await ask_replica(
                self._overlaps, replica_id, prompts, extra_keys, timeout_seconds=self._timeout_seconds
            )
        except Exception as error:
            logger.warning("replica %s did not say what it holds: %r", replica_id, error)
            return None
        return found


def _route_request(request: GenerateRequest) -> RouteRequest:
    return replace(route_request(request), request_id="explain")
