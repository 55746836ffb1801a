"""What a request's prompt is in token ids, under vLLM's paths: routers that match tokens ask an engine for them."""

import uuid
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.generation_api import GenerationApi
from cluster.api.http_app import Handler
from cluster.api.limits import ApiLimits
from cluster.api.request_body import read_json_object
from cluster.api.request_context import explain_context


class RenderApi:
    """Of vLLM's answer only what says which tokens the engine would see: `request_id`, `model`, `token_ids`."""

    def __init__(self, generation: GenerationApi, limits: ApiLimits):
        self._generation = generation
        self._limits = limits

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {
            ("POST", "/v1/chat/completions/render"): self.chat,
            ("POST", "/v1/completions/render"): self.completion,
        }

    async def chat(self, request: Request) -> Response:
        """The body of a chat completion; nothing is run."""
        fields = await read_json_object(request, self._limits.max_body_bytes)
        body, (token_ids,) = await self._generation.read_chat(fields, explain_context(request, fields))
        return JSONResponse(_rendered(body.model, token_ids))

    async def completion(self, request: Request) -> Response:
        """The body of a completion, one answer for each of its prompts; nothing is run."""
        fields = await read_json_object(request, self._limits.max_body_bytes)
        body, prompts = await self._generation.read_completion(fields)
        return JSONResponse([_rendered(body.model, token_ids) for token_ids in prompts])


def _rendered(model: str, token_ids: list[int]) -> dict[str, Any]:
    return {"request_id": uuid.uuid4().hex, "model": model, "token_ids": token_ids}
