"""`/v1/chat/completions` and `/v1/completions`."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cluster.api.answer_format import AnswerFormat, AnswerHead, ChatFormat, CompletionFormat
from cluster.api.answer_grammar import check_grammar
from cluster.api.chat_request import ChatCompletionRequest
from cluster.api.choice_reader import ChoiceReader
from cluster.api.completion_request import CompletionRequest
from cluster.api.engine_call import OpenCall
from cluster.api.errors import bad_request, model_not_found
from cluster.api.generation import Generation
from cluster.api.generation_response import GenerationResponse
from cluster.api.limits import ApiLimits
from cluster.api.logprobs_format import ChatLogprobs, CompletionLogprobs
from cluster.api.prompt_reader import PromptReader
from cluster.api.request_body import read_json_object, validate
from cluster.api.request_context import RequestContext, context_of
from cluster.api.tool_calls import ToolCallParser
from cluster.api.unsupported_fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL, drop_unsupported
from cluster.text.sampling_defaults import SamplingDefaults
from replica.messages import GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """name: what clients call it. fingerprint: identity of the weights, shown as `system_fingerprint`.

    sampling_defaults: for what requests leave out.
    """

    name: str
    fingerprint: str
    max_model_len: int
    created: int
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)

    @property
    def system_fingerprint(self) -> str:
        return f"fp_{self.fingerprint[:16]}"


class GenerationApi:
    """Reads a body, makes one engine request per choice and hands the rest to GenerationResponse."""

    def __init__(
        self,
        model: ServedModel,
        reader: PromptReader,
        open_call: OpenCall,
        limits: ApiLimits,
        on_failure: Callable[[BaseException], None],
    ):
        self._model = model
        self._reader = reader
        self._open_call = open_call
        self._limits = limits
        self._on_failure = on_failure

    async def chat_completions(self, request: Request) -> Response:
        """The official chat completions, with top_k, min_p and the other sampling fields of open models."""
        arrival = time.monotonic()
        fields = await read_json_object(request, self._limits.max_body_bytes)
        context = context_of(request, fields, arrival, self._limits.request_timeout_seconds)
        body, prompts = await self.read_chat(fields, context)

        def reader_of(index: int) -> ChoiceReader:
            logprobs = ChatLogprobs(self._reader.tokenizer) if body.logprobs else None
            tool_calls = self._call_parser(body) if body.usable_tools else None
            return ChoiceReader("", logprobs, tool_calls, tells_of_calls=not body.is_one_forced_call)

        return self._response(body, prompts, context, ChatFormat(), reader_of)

    async def completions(self, request: Request) -> Response:
        """The official completions of texts or token ids; `max_tokens: 0` scores or warms a prompt."""
        arrival = time.monotonic()
        fields = await read_json_object(request, self._limits.max_body_bytes)
        context = context_of(request, fields, arrival, self._limits.request_timeout_seconds)
        body, prompts = await self.read_completion(fields)
        echoes = await self._reader.echoes(body.prompt) if body.echo else None

        def reader_of(index: int) -> ChoiceReader:
            prompt = index // body.num_choices
            echo, echoed_ids = ("", []) if echoes is None else (echoes[prompt], prompts[prompt])
            with_logprobs = body.logprobs is not None
            return ChoiceReader(
                echo, CompletionLogprobs(self._reader.tokenizer, echoed_ids, echo) if with_logprobs else None
            )

        return self._response(body, prompts, context, CompletionFormat(), reader_of)

    async def read_chat(
        self, fields: dict[str, Any], context: RequestContext
    ) -> tuple[ChatCompletionRequest, list[list[int]]]:
        """The checked body and its one prompt. Raises ApiError."""
        body = validate(ChatCompletionRequest, drop_unsupported(fields, CHAT_NEUTRAL))
        body.write_calls_as(self._reader.tokenizer.tool_form)
        self._check_common(body, 1)
        if body.usable_tools or body.response_format is not None:
            await check_grammar(lambda: body.grammar, body.grammar_field)
        space = context.extra_keys(body.cache_salt).cache_salt
        return body, [await self._reader.chat(body.messages, body.usable_tools, space)]

    async def read_completion(self, fields: dict[str, Any]) -> tuple[CompletionRequest, list[list[int]]]:
        """The checked body and its prompts. Raises ApiError."""
        self._reader.refuse_long_ids(fields.get("prompt"))
        body = validate(CompletionRequest, drop_unsupported(fields, COMPLETION_NEUTRAL))
        self._check_common(body, len(body.prompt))
        return body, await self._reader.prompts(body.prompt)

    def engine_requests(
        self,
        body: ChatCompletionRequest | CompletionRequest,
        prompts: Sequence[list[int]],
        id: str,
        context: RequestContext,
    ) -> list[GenerateRequest]:
        """One per choice, in the order of the choices' indices (37).

        id: made here; no client ever chooses it (39).
        """
        requests: list[GenerateRequest] = []
        for token_ids in prompts:
            max_tokens = self._reader.answer_tokens(
                len(token_ids), body.answer_limit, body.answer_limit_field, body.prompt_field
            )
            if (body.min_tokens or 0) > max_tokens:
                raise bad_request(f"min_tokens must not exceed the limit of {max_tokens} tokens", "min_tokens")
            for choice in range(body.num_choices):
                requests.append(
                    GenerateRequest(
                        request_id=f"{id}-{len(requests)}",
                        token_ids=token_ids,
                        sampling=body.sampling_params(choice, max_tokens, self._model.sampling_defaults),
                        arrival_seconds=context.arrival_seconds,
                        extra_keys=context.extra_keys(body.cache_salt),
                        deadline_seconds=context.deadline_seconds,
                        session_id=context.session_id,
                        priority=body.priority or 0,
                    )
                )
        return requests

    def _call_parser(self, body: ChatCompletionRequest) -> ToolCallParser:
        return ToolCallParser(self._reader.tokenizer.tool_form, [tool.function for tool in body.usable_tools])

    def _check_common(self, body: ChatCompletionRequest | CompletionRequest, num_prompts: int) -> None:
        if body.model != self._model.name:
            raise model_not_found(body.model, self._model.name)
        num_choices = num_prompts * body.num_choices
        if num_choices > self._limits.max_choices:
            message = (
                f"{num_choices} answers were asked for (prompts times n); the limit is {self._limits.max_choices}."
            )
            raise bad_request(message, "n" if body.num_choices > 1 else "prompt")
        self._reader.check_vocabulary(body.stop_token_ids or (), "stop_token_ids")
        self._reader.check_vocabulary([token_id for token_id, _ in body.logit_bias], "logit_bias")

    def _response(
        self,
        body: ChatCompletionRequest | CompletionRequest,
        prompts: Sequence[list[int]],
        context: RequestContext,
        format: AnswerFormat,
        reader_of: Callable[[int], ChoiceReader],
    ) -> Response:
        id = format.id_prefix + uuid.uuid4().hex
        requests = self.engine_requests(body, prompts, id, context)
        head = AnswerHead(
            id=id,
            created=int(time.time()),
            model=self._model.name,
            system_fingerprint=self._model.system_fingerprint,
        )
        generation = Generation(
            head=head,
            format=format,
            requests=requests,
            reader_of=reader_of,
            choices_per_prompt=body.num_choices,
            stream=bool(body.stream),
            include_usage=body.include_usage,
        )
        return GenerationResponse(generation, self._open_call, self._on_failure)
