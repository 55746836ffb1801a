"""`/v1/models`, `/tokenize` and `/detokenize`: what a client asks about the model itself."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.chat_request import ChatMessage
from cluster.api.errors import bad_request, model_not_found
from cluster.api.generation_api import ServedModel
from cluster.api.limits import ApiLimits
from cluster.api.prompt_reader import Tokenizer
from cluster.api.request_body import read_json_object, validate
from cluster.api.responses import Model, ModelList


class TokenizeRequest(BaseModel):
    """Either prompt or messages."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    tokens: list[int]


class ModelApi:
    def __init__(self, model: ServedModel, tokenizer: Tokenizer, limits: ApiLimits):
        self._model = model
        self._tokenizer = tokenizer
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
            ids = await self._encode_chat(body.messages)
        else:
            ids = await self._tokenizer.encode(body.prompt or "", body.add_special_tokens)
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": self._model.max_model_len, "tokens": ids}
        if body.return_token_strs:
            answer["token_strs"] = self._tokenizer.token_strings(ids)
        return JSONResponse(answer)

    async def detokenize(self, request: Request) -> Response:
        body = validate(DetokenizeRequest, await read_json_object(request, self._limits.max_body_bytes))
        self._check_name(body.model)
        size = self._tokenizer.vocab_size
        wrong = next((token for token in body.tokens if not 0 <= token < size), None)
        if wrong is not None:
            raise bad_request(f"Invalid value for tokens: ids must be between 0 and {size - 1}, got {wrong}", "tokens")
        return JSONResponse({"prompt": await self._tokenizer.decode(body.tokens)})

    async def _encode_chat(self, messages: list[ChatMessage]) -> list[int]:
        try:
            return await self._tokenizer.encode_chat([message.for_template() for message in messages])
        except ValueError as error:
            raise bad_request(f"Invalid value for messages: {error}", "messages") from error

    def _check_name(self, name: str | None) -> None:
        if name is not None and name != self._model.name:
            raise model_not_found(name, self._model.name)
