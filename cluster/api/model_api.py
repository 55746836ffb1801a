"""`/v1/models`, `/tokenize` and `/detokenize`: what a client asks about the model itself."""

import asyncio
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.authentication import tenant_of
from cluster.api.chat_request import ChatMessage
from cluster.api.errors import bad_request, model_not_found
from cluster.api.generation_api import ServedModel
from cluster.api.limits import ApiLimits
from cluster.api.prompt_reader import PromptReader
from cluster.api.request_body import read_json_object, validate
from cluster.api.responses import Model, ModelList


class TokenizeRequest(BaseModel):
    """Either prompt or messages."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    """Default: true."""
    return_token_strs: bool | None = None


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    tokens: list[int]


class ModelApi:
    """Bodies of any size cost no more than prompts do, and none of it on the event loop: texts that cannot fit the
    window are refused unread, as prompts are (57)."""

    def __init__(self, model: ServedModel, reader: PromptReader, limits: ApiLimits):
        self._model = model
        self._reader = reader
        self._tokenizer = reader.tokenizer
        self._limits = limits
        self._entry = Model(id=model.name, created=model.created, max_model_len=model.max_model_len)

    async def models(self, request: Request) -> Response:
        return JSONResponse(ModelList(data=[self._entry]).model_dump())

    async def model(self, request: Request) -> Response:
        self._check_name(request.path_params["model"])
        return JSONResponse(self._entry.model_dump())

    async def tokenize(self, request: Request) -> Response:
        body = validate(TokenizeRequest, await read_json_object(request, self._limits.max_body_bytes))
        self._check_name(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("Give either prompt or messages.", "prompt")
        if body.messages is not None:
            tenant = tenant_of(request)
            space = None if tenant is None else tenant.cache_salt(None)
            ids = await self._reader.encode_chat(body.messages, space=space)
        else:
            ids = await self._reader.encode(body.prompt or "", body.add_special_tokens is not False)
        return await asyncio.to_thread(self._tokens_response, ids, bool(body.return_token_strs))

    async def detokenize(self, request: Request) -> Response:
        fields = await read_json_object(request, self._limits.max_body_bytes)
        self._reader.refuse_long_answer(fields.get("tokens"), "tokens")  # before millions of ids are looked at
        body = validate(DetokenizeRequest, fields)
        self._check_name(body.model)
        self._reader.check_vocabulary(body.tokens, "tokens")
        return JSONResponse({"prompt": await self._tokenizer.decode(body.tokens)})

    def _tokens_response(self, ids: list[int], with_strings: bool) -> Response:
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": self._model.max_model_len, "tokens": ids}
        if with_strings:
            answer["token_strs"] = self._tokenizer.token_strings(ids)
        return JSONResponse(answer)

    def _check_name(self, name: str | None) -> None:
        if name is not None and name != self._model.name:
            raise model_not_found(name, self._model.name)
