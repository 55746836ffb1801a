"""Body of `POST /v1/chat/completions`."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from cluster.api.sampling_fields import SamplingFields, invalid


def _joined_text(value: Any) -> str | None:
    """A string, or text parts joined by newlines as vLLM joins them, or None (20)."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise invalid("content must be a string or a non-empty list of text parts")
    return "\n".join(_part_text(index, part) for index, part in enumerate(value))


def _part_text(index: int, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "refusal"):
        raise invalid(f"part {index} must have the type text; other content is not supported")
    text = part.get(kind)
    if not isinstance(text, str):
        raise invalid(f"part {index} must hold a string under {kind!r}")
    return text


class ChatMessage(BaseModel):
    """One message; content is text only. `name` and `tool_calls` reach the template, which may or may not use them."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[Any, BeforeValidator(_joined_text), Field(validate_default=True)] = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @field_validator("content")
    @classmethod
    def _only_the_assistant_may_say_nothing(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("role") != "assistant":
            raise invalid("content must be a string or a list of text parts; only the assistant's may be null")
        return value

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: content is a string (they fail on null, 20), tool arguments are an object.

        `developer` becomes `system`: it took that role's place in the API, and open models' templates do not know it.
        """
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": self.content or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [_with_parsed_arguments(call) for call in self.tool_calls]
        return message


def _with_parsed_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


class ChatCompletionRequest(SamplingFields):
    """Without a bound the answer may fill the window. `max_completion_tokens` is the newer name of `max_tokens`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None

    @field_validator("max_completion_tokens")
    @classmethod
    def _one_bound_only(cls, value: int | None, info: ValidationInfo) -> int | None:
        if len({value, info.data.get("max_tokens")} - {None}) > 1:
            raise invalid("it must not differ from max_tokens; give one of them")
        return value

    @property
    def answer_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def answer_limit_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"
