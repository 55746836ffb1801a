"""The fields that chat completions and completions share."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from cluster.text.sampling_defaults import SamplingDefaults
from replica.sampling_params import MAX_STOP_STRINGS, MIN_REPETITION_PENALTY, SamplingParams

MAX_BIASES = 1024
MAX_SALT_CHARACTERS = 256


def invalid(message: str) -> PydanticCustomError:
    return PydanticCustomError("invalid", "{text}", {"text": message})


def missing() -> PydanticCustomError:
    """For a field that only some bodies need."""
    return PydanticCustomError("missing", "Field required")


def _stop_strings(value: Any) -> tuple[str, ...]:
    """One string or a list of them; an empty one would match everything (10)."""
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise invalid("stop must be a string or a list of strings")
    if any(not text for text in texts):
        raise invalid("stop must not hold an empty string")
    if len(texts) > MAX_STOP_STRINGS:
        raise invalid(f"stop must hold at most {MAX_STOP_STRINGS} strings, got {len(texts)}")
    return tuple(texts)


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Token id -> what is added to its logit; JSON's keys are strings."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise invalid("logit_bias must be an object from token ids to numbers")
    if len(value) > MAX_BIASES:
        raise invalid(f"logit_bias must hold at most {MAX_BIASES} tokens, got {len(value)}")
    return tuple(_one_bias(token_id, bias) for token_id, bias in value.items())


def _one_bias(token_id: Any, bias: Any) -> tuple[int, float]:
    if not isinstance(token_id, str) or not re.fullmatch(r"-?[0-9]{1,18}", token_id, re.ASCII):
        raise invalid(f"logit_bias must have token ids as its keys, got {str(token_id)[:50]!r}")
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
        raise invalid(f"logit_bias must be between -100 and 100, got {str(bias)[:50]} for token {token_id}")
    return int(token_id), float(bias)


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Accepted; nothing is padded, so there is nothing to leave out."""
    continuous_usage_stats: bool | None = None
    """vLLM's, which load generators send. Accepted; usage comes in the last chunk alone, where they read it too."""


class SamplingFields(BaseModel):
    """Strict: a number in quotes is the caller's mistake and no number (16). NaN and infinity are refused (18).

    `max_tokens: 0` computes the prompt alone: the answer is empty and the prompt's pages are warm (12).
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[Any, BeforeValidator(_stop_strings)] = ()
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=10)] | None = None
    logit_bias: Annotated[Any, BeforeValidator(_logit_bias)] = ()
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None

    @field_validator("stream_options")
    @classmethod
    def _stream_options_need_a_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise invalid("it is only allowed when stream is true")  # a whole answer has its usage anyway (32)
        return value

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def num_top_logprobs(self) -> int | None:
        """How many of the likeliest tokens are told with each token; None tells no logprobs."""
        return None

    @property
    def wants_prompt_logprobs(self) -> bool:
        return False

    @property
    def grammar(self) -> str | None:
        """What the answer must match, in llguidance's format; None is free text."""
        return None

    @property
    def shown_token_ids(self) -> tuple[int, ...]:
        """Special tokens that are part of the answer's text."""
        return ()

    def sampling_params(self, choice: int, max_tokens: int, defaults: SamplingDefaults) -> SamplingParams:
        """choice: 0 to n - 1. A given seed is shifted by it, or all n choices would be one text (35).

        defaults: the model's, for what is not given.
        """
        seed = self.seed
        if seed is not None and choice:
            seed = (seed + choice + 2**63) % 2**64 - 2**63
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            top_k=defaults.top_k if self.top_k is None else max(0, self.top_k),
            seed=seed,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            min_p=defaults.min_p if self.min_p is None else self.min_p,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=(
                defaults.repetition_penalty if self.repetition_penalty is None else self.repetition_penalty
            ),
            logit_bias=self.logit_bias,
            min_tokens=self.min_tokens or 0,
            top_logprobs=self.num_top_logprobs,
            prompt_logprobs=self.wants_prompt_logprobs,
            grammar=self.grammar,
            shown_token_ids=self.shown_token_ids,
        )
