"""Body of `POST /v1/completions`."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from cluster.api.sampling_fields import SamplingFields, invalid
from replica.sampling_params import MAX_TOP_LOGPROBS

DEFAULT_MAX_TOKENS = 16
"""As the official schema says; chat has no such default."""


def _prompt_list(value: Any) -> list[str] | list[list[int]]:
    """The four official forms as a list of texts or a list of token id lists. An empty prompt is refused (11)."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        raise invalid("prompt must be a non-empty string or list")
    if _is_token_ids(value):
        value = [value]
    if not (all(isinstance(item, str) for item in value) or all(_is_token_ids(item) for item in value)):
        raise invalid("prompt must be a string, a list of strings, a list of token ids or a list of token id lists")
    if not all(value):
        raise invalid("prompt must not be empty")
    return value


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)  # True is an int, but no token id


class CompletionRequest(SamplingFields):
    """With `max_tokens: 0`, `echo` and `logprobs` score a text (12)."""

    prompt: Annotated[Any, BeforeValidator(_prompt_list)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None

    @property
    def prompt_field(self) -> str:
        return "prompt"

    @property
    def answer_limit(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def answer_limit_field(self) -> str | None:
        """None when the limit is only the default, which is then cut to the window."""
        return None if self.max_tokens is None else "max_tokens"

    @property
    def num_top_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def wants_prompt_logprobs(self) -> bool:
        return bool(self.echo) and self.logprobs is not None
