"""Body of `POST /v1/chat/completions`."""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from cluster.api.answer_grammar import json_grammar, tool_grammar
from cluster.api.called_tools import CalledTool
from cluster.api.response_format import ResponseFormat
from cluster.api.sampling_fields import SamplingFields, invalid, missing
from cluster.api.tools import MAX_TOOLS, Function, Tool, ToolChoice, check_tools, read_tool_choice
from cluster.text.tool_forms.form import ToolForm
from cluster.text.tool_forms.known_forms import HERMES
from replica.sampling_params import MAX_TOP_LOGPROBS


def _joined_text(value: Any) -> str | None:
    """A string, or text parts joined by newlines as vLLM joins them, or None (20)."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
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


_ROLE_THAT_NEEDS = {"name": "function", "tool_call_id": "tool"}


class ChatMessage(BaseModel):
    """One message; content is text only. `name` and `tool_calls` reach the template, which may or may not use them."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[Any, BeforeValidator(_joined_text), Field(validate_default=True)] = None
    name: Annotated[str | None, Field(validate_default=True)] = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: Annotated[str | None, Field(validate_default=True)] = None

    @field_validator("content", mode="before")
    @classmethod
    def _no_parts_only_where_nothing_need_be_said(cls, value: Any, info: ValidationInfo) -> Any:
        """`[]` in a turn that only calls, or as the result of a call that gave nothing."""
        if value == [] and info.data.get("role") not in ("assistant", "tool"):
            raise invalid("content must be a string or a non-empty list of text parts")
        return value

    @field_validator("content")
    @classmethod
    def _only_the_assistant_may_say_nothing(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("role") != "assistant":
            raise invalid("content must be a string or a list of text parts; only the assistant's may be null")
        return value

    @field_validator("name", "tool_call_id")
    @classmethod
    def _what_a_role_needs(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("role") == _ROLE_THAT_NEEDS[info.field_name or ""]:
            raise missing()
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
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message


class ChatCompletionRequest(SamplingFields):
    """Without a bound the answer may fill the window. `max_completion_tokens` is the newer name of `max_tokens`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[Any, BeforeValidator(read_tool_choice)] = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    _tool_form: ToolForm = PrivateAttr(HERMES)

    @field_validator("max_completion_tokens")
    @classmethod
    def _one_bound_only(cls, value: int | None, info: ValidationInfo) -> int | None:
        if len({value, info.data.get("max_tokens")} - {None}) > 1:
            raise invalid("it must not differ from max_tokens; give one of them")
        return value

    @field_validator("top_logprobs")
    @classmethod
    def _top_logprobs_need_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and not info.data.get("logprobs"):
            raise invalid("it is only allowed when logprobs is true")
        return value

    @field_validator("tools")
    @classmethod
    def _each_tool_once(cls, value: list[Tool] | None) -> list[Tool] | None:
        check_tools(value or ())
        return value

    @field_validator("tool_choice")
    @classmethod
    def _only_given_tools(cls, value: ToolChoice | None, info: ValidationInfo) -> ToolChoice | None:
        known = {tool.function.name for tool in info.data.get("tools") or ()}
        if value is not None and value.mode == "required" and not known:
            raise invalid("it needs tools to choose from")
        for name in (value.names if value is not None else None) or ():
            if name not in known:
                raise invalid(f"there is no function {name!r} among the tools")
        return value

    @property
    def usable_tools(self) -> list[Tool]:
        """The tools that the prompt tells of; with `tool_choice: none` there are none."""
        if self.tool_choice is not None and self.tool_choice.mode == "none":
            return []
        return self.tools or []

    @cached_property
    def grammar(self) -> str | None:
        otherwise = self.response_format.schema_to_match if self.response_format is not None else None
        if not self.usable_tools:
            return json_grammar(*otherwise) if otherwise is not None else None
        choice = self.tool_choice or ToolChoice("auto")
        functions: list[Function] = [
            tool.function for tool in self.usable_tools if choice.names is None or tool.function.name in choice.names
        ]
        return tool_grammar(
            functions,
            required=choice.mode == "required",
            parallel=self.parallel_tool_calls is not False and not choice.is_one_call,
            otherwise=otherwise,
            form=self._tool_form,
        )

    def write_calls_as(self, form: ToolForm) -> None:
        """form: what the served model writes its calls in; to be told before the grammar is asked for."""
        self._tool_form = form

    @property
    def shown_token_ids(self) -> tuple[int, ...]:
        return tuple(self._tool_form.token_ids.values()) if self.usable_tools else ()

    @property
    def grammar_field(self) -> str:
        """The field that a grammar which cannot be used is the fault of."""
        return "tools" if self.usable_tools else "response_format"

    @property
    def is_one_forced_call(self) -> bool:
        """The client named the function to call, so that its finish reason tells nothing of calls: it is "stop"."""
        return self.tool_choice is not None and self.tool_choice.is_one_call

    @property
    def num_top_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prompt_field(self) -> str:
        return "messages"

    @property
    def answer_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def answer_limit_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
