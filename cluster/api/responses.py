"""Bodies of answers, with the official names. Keys that strict clients require are present even when null (33b)."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny

from replica.messages import Usage

AnswerReason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionUsage(BaseModel):
    """`cached_tokens` is always an integer, in every mode (31)."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def sum_usage(usages: Sequence[Usage], choices_per_prompt: int) -> CompletionUsage:
    """Usage of a whole HTTP request. usages: one per choice, those of one prompt side by side.

    A prompt counts once, however many choices it has. Its cached tokens are the least that any of its choices found:
    what the others found beyond that, their siblings had computed for this very request.
    """
    prompts = [usages[start : start + choices_per_prompt] for start in range(0, len(usages), choices_per_prompt)]
    prompt_tokens = sum(choices[0].prompt_tokens for choices in prompts)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    cached_tokens = sum(min(usage.cached_tokens for usage in choices) for choices in prompts)
    return CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
    )


class CalledFunction(BaseModel):
    """arguments: JSON text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None


class CallingMessage(AssistantMessage):
    """A message of its own, because the key must be absent where nothing is called."""

    tool_calls: list[ToolCall]


class ChatChoice(BaseModel):
    index: int
    message: SerializeAsAny[AssistantMessage]
    logprobs: dict[str, Any] | None = None
    finish_reason: AnswerReason


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: CompletionUsage


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: AnswerReason


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: CompletionUsage


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "warmlane"
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model] = Field(default_factory=list)
