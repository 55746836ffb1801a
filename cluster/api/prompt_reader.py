"""From a checked body to token ids that an engine can serve."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cluster.api.chat_request import ChatMessage
from cluster.api.errors import ApiError, bad_request, context_length_exceeded
from cluster.api.tools import Tool
from cluster.text.tool_forms.form import ToolForm


class Tokenizer(Protocol):
    """`cluster.text.tokenization.ChatTokenizer`. encode_chat raises ValueError for messages its template refuses."""

    vocab_size: int

    @property
    def tool_form(self) -> ToolForm: ...
    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    async def encode_chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), space: str | None = None
    ) -> list[int]: ...
    async def decode(self, token_ids: Sequence[int]) -> str: ...
    def min_tokens(self, num_bytes: int) -> int: ...
    def token_strings(self, token_ids: Sequence[int]) -> list[str]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...


class PromptReader:
    """Tokenises and checks against the vocabulary and the window. Every refusal is an ApiError 400."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int, observe_seconds: Callable[[float], None]):
        """max_model_len: tokens of prompt and answer together. observe_seconds: told how long each prompt took."""
        self.tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._observe_seconds = observe_seconds

    async def chat(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), space: str | None = None
    ) -> list[int]:
        """space: of the caller's pages (`ExtraKeys.cache_salt`); turns that were tokenised for it need not be again."""
        begin = time.perf_counter()
        ids = await self.encode_chat(messages, tools, space)
        self._observe_seconds(time.perf_counter() - begin)
        return self.checked(ids, "messages")

    async def encode_chat(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), space: str | None = None
    ) -> list[int]:
        """Ids of any length, except those of a text that cannot fit (57)."""
        rendered = [message.for_template() for message in messages]
        self._refuse_long_text("".join(str(message.get("content") or "") for message in rendered), "messages")
        try:
            return await self.tokenizer.encode_chat(rendered, [tool.for_template() for tool in tools], space)
        except ValueError as error:
            raise bad_request(f"Invalid value for messages: {error}", "messages") from error

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of any length, except those of a text that cannot fit (57)."""
        self._refuse_long_text(text, "prompt")
        return await self.tokenizer.encode(text, add_special_tokens)

    async def prompts(self, prompts: Sequence[str] | Sequence[list[int]]) -> list[list[int]]:
        return list(await asyncio.gather(*map(self._prompt, prompts)))

    async def echoes(self, prompts: Sequence[str] | Sequence[list[int]]) -> list[str]:
        """Each prompt as text. Where token ids end inside a character, that character comes with the answer (A40)."""
        return [
            prompt if isinstance(prompt, str) else (await self.tokenizer.decode(prompt)).rstrip("\ufffd")
            for prompt in prompts
        ]

    async def _prompt(self, prompt: str | list[int]) -> list[int]:
        if not isinstance(prompt, str):
            return self.checked(prompt, "prompt")
        begin = time.perf_counter()
        ids = await self.encode(prompt)
        self._observe_seconds(time.perf_counter() - begin)
        return self.checked(ids, "prompt")

    def checked(self, ids: list[int], param: str) -> list[int]:
        """Empty prompts (11), unknown ids (19) and prompts beyond the window (14) are refused."""
        if not ids:
            raise bad_request(f"Invalid value for {param}: it gives no tokens", param)
        if len(ids) > self._max_model_len:
            raise self._too_long(f"{len(ids)}", param)
        self.check_vocabulary(ids, param)
        return ids

    def refuse_long_ids(self, prompt: Any) -> None:
        """Takes an unchecked prompt field; ids beyond the window are refused before millions are looked at (57)."""
        lists = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) else [prompt]
        for ids in lists:
            if isinstance(ids, list) and len(ids) > self._max_model_len and type(ids[0]) is int:
                raise self._too_long(f"{len(ids)}", "prompt")

    def refuse_long_answer(self, ids: Any, param: str) -> None:
        """The same for an unchecked list of ids that may be a prompt with its answer."""
        if isinstance(ids, list) and len(ids) > self._max_model_len:
            raise self._too_long(f"{len(ids)}", param)

    def _refuse_long_text(self, text: str, param: str) -> None:
        """A text that cannot fit whatever its tokens are is refused before seconds of tokenising (57)."""
        fewest = self.tokenizer.min_tokens(len(text.encode()))
        if fewest > self._max_model_len:
            raise self._too_long(f"at least {fewest}", param)

    def _too_long(self, count: str, param: str, of_these: str = "") -> ApiError:
        return context_length_exceeded(
            f"This model's maximum context length is {self._max_model_len} tokens{of_these}; "
            f"what you sent as {param} has {count} tokens.",
            param,
        )

    def check_vocabulary(self, ids: Sequence[int], param: str) -> None:
        if not ids:
            return
        low, high, size = min(ids), max(ids), self.tokenizer.vocab_size
        if low < 0 or high >= size:
            wrong = low if low < 0 else high
            message = f"Invalid value for {param}: token ids must be between 0 and {size - 1}, got {wrong}"
            raise bad_request(message, param)

    def answer_tokens(self, num_prompt_tokens: int, limit: int | None, field: str | None, prompt_field: str) -> int:
        """Upper bound of the answer. field: the one that named `limit`; a limit nobody named is cut to the window.

        Raises ApiError 400 when a named limit does not fit behind the prompt, as vLLM does: silently giving less than
        what was asked for would look like an answer that was cut by mistake. Where nobody named one there must be room
        for one token; a prompt that fills the window is computed with a limit of 0 alone (12).
        """
        room = self._max_model_len - num_prompt_tokens
        if limit is not None and limit <= room:
            return limit
        if limit is None or field is None:
            if not room:
                raise self._too_long(f"{num_prompt_tokens}", prompt_field, ", one of them at least for the answer")
            return room
        raise context_length_exceeded(
            f"This model's maximum context length is {self._max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + limit} tokens ({num_prompt_tokens} in the prompt, {limit} in the answer).",
            field,
        )
