"""The one place where text becomes token ids: chat template and tokenizer of the served model."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from transformers import AutoTokenizer

from cluster.text.chat_encoder import ChatEncoder
from cluster.text.chat_seams import find_seams
from cluster.text.control_tokens import ControlTokenInText, ControlTokens, map_strings, strings_in
from cluster.text.segment_cache import SegmentCache
from cluster.text.template_tools import find_template_tools
from cluster.text.token_bytes import TokenBytes
from cluster.text.tool_forms.form import ToolForm

Result = TypeVar("Result")

INLINE_CHARACTERS = 2000
"""Up to here tokenising (about 1 us per character) costs less than handing it to a thread and waiting for the loop."""
_SAMPLE_CHAT = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]


class PromptError(ValueError):
    """The messages cannot be rendered or tokenised; a client's mistake (HTTP 400)."""


class ChatTokenizer:
    """Renders and tokenises each prompt once, for router and engine alike (22). No normalisation of its own (60).

    Long texts are tokenised in a thread; the Rust tokenizer gives up the interpreter lock in its batch calls only.
    """

    def __init__(self, model_dir: str):
        """model_dir: local folder. Raises ValueError when its tokenizer is not of the `tokenizers` library."""
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(f"model_dir {model_dir} has no fast tokenizer (tokenizer.json), which is required")
        backend.no_truncation()  # a stored truncation would cut prompts silently
        backend.no_padding()
        self._backend = backend
        self._control_tokens = ControlTokens(backend)
        self._chat_encoder = ChatEncoder(
            backend, self._control_tokens, find_seams(backend, self._sample_chat()), SegmentCache()
        )
        self._token_bytes = TokenBytes(backend)
        self._longest_token = max(len(token.encode()) for token in backend.get_vocab(with_added_tokens=True))
        self._template_tools = find_template_tools(
            self.render, str(self._tokenizer.chat_template or ""), self._control_tokens.id_of
        )
        self.vocab_size = _embedding_rows(model_dir) or len(self._tokenizer)
        """Token ids that the model can embed: 0 to vocab_size - 1."""

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    @property
    def tool_form(self) -> ToolForm:
        """What the model writes its calls in, as far as the chat template tells."""
        return self._template_tools.form

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a plain prompt. Control tokens in it are meant: the caller writes the whole format itself."""
        return await self._run(len(text), self._encode, text, add_special_tokens)

    async def encode_chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = (), space: str | None = None
    ) -> list[int]:
        """Ids of the rendered conversation, ready for the assistant's answer. Turns that were tokenised before cost
        next to nothing (`cluster.text.chat_encoder`).

        tools: functions that the answer may call. A template that tells the model of tools gets them as they are; for
        the others they are written into the messages (`cluster.text.tool_prompt`). space: the name space of
        the caller's pages; a turn that was tokenised for another one counts as new.

        Text such as `<|im_end|>` inside a message stays text (21). Raises PromptError when the template refuses the
        messages, or when there is none.
        """
        messages, tools = self._template_tools.prepared(messages, tools)
        size = sum(len(message["content"]) for message in messages) + 100 * len(tools)
        return await self._run(size, self._encode_chat, messages, tools, space)

    async def decode(self, token_ids: Sequence[int]) -> str:
        return await self._run(len(token_ids), self._decode, list(token_ids))

    def min_tokens(self, num_bytes: int) -> int:
        """No text of so many UTF-8 bytes has fewer tokens: a token's name is never shorter than what it stands for."""
        return -(-num_bytes // self._longest_token)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for; a character may need several tokens."""
        return self._token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        return self._token_bytes.is_special(token_id)

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> str:
        if not self.has_chat_template:
            raise PromptError("this model has no chat template; use /v1/completions")
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=list(tools) or None, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program of the model's author: whatever it raises is its refusal
            raise PromptError(f"the chat template refuses these messages: {error}") from error

    def _sample_chat(self) -> str:
        """A rendered chat with the template's control tokens; empty where there is no template, or it takes none."""
        for messages in (_SAMPLE_CHAT, _SAMPLE_CHAT[1:], _SAMPLE_CHAT[1:2]):
            with suppress(PromptError):
                return self.render(messages)
        return ""

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def _decode(self, token_ids: list[int]) -> str:
        return self._backend.decode_batch([token_ids], skip_special_tokens=False)[0]

    def _encode_chat(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], space: str | None
    ) -> list[int]:
        marks = self._control_tokens.marks_for(strings_in([*messages, *tools]))
        if marks is None:
            return self._chat_encoder.encode(self.render(messages, tools), (), space)
        hidden = self.render(map_strings(messages, marks.hide), map_strings(tools, marks.hide))
        text, positions = marks.reveal(hidden)
        try:
            return self._chat_encoder.encode(text, positions, space)
        except ControlTokenInText as error:
            raise PromptError(str(error)) from error

    async def _run(self, size: int, function: Callable[..., Result], *args: object) -> Result:
        if size <= INLINE_CHARACTERS:
            return function(*args)
        return await asyncio.to_thread(function, *args)


def _embedding_rows(model_dir: str) -> int | None:
    """`vocab_size` of the checkpoint's config; the tokenizer may know fewer or more ids than the model."""
    path = Path(model_dir) / "config.json"
    if not path.is_file():
        return None
    config = json.loads(path.read_text())
    for part in (config, config.get("text_config") or {}):
        if isinstance(part.get("vocab_size"), int):
            return part["vocab_size"]
    return None
