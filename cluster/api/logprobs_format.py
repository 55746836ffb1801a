"""Logprobs as the official schemas write them: per token for chat, in parallel lists for completions."""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from replica.messages import TokenChunk, TokenLogprobs


class TokenTexts(Protocol):
    """`cluster.text.tokenization.ChatTokenizer`: what a single token stands for."""

    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...


class LogprobsFormat(Protocol):
    """Collects the tokens of one choice; their entries leave with the next text that is sent."""

    def add(self, chunk: TokenChunk) -> None: ...
    def take(self) -> dict[str, Any] | None:
        """The entries since the last time; None where there are none."""


def escaped(data: bytes) -> str | None:
    """`\\xe4\\xb8` for bytes that are no text by themselves, as the official server writes them; None for text."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)
    return None


class ChatLogprobs:
    """`{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}`.

    One entry per generated token, the one that ended the answer included, so that they are as many as
    `completion_tokens`.
    """

    def __init__(self, tokens: TokenTexts):
        self._tokens = tokens
        self._entries: list[dict[str, Any]] = []

    def add(self, chunk: TokenChunk) -> None:
        for entry in chunk.logprobs:
            top = [self._entry(token_id, logprob) for token_id, logprob in entry.top]
            self._entries.append({**self._entry(entry.token_id, entry.logprob), "top_logprobs": top})

    def take(self) -> dict[str, Any] | None:
        entries, self._entries = self._entries, []
        return {"content": entries, "refusal": None} if entries else None

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokens.token_bytes(token_id)
        text = escaped(data)
        return {"token": data.decode() if text is None else text, "logprob": logprob, "bytes": list(data)}


class CompletionLogprobs:
    """`tokens`, `token_logprobs`, `top_logprobs` and `text_offset`, all of one length (38).

    text_offset: characters of the answer's text before the token's own, the echoed prompt included; a token that goes
    on inside a character has that character's offset. The first token of an echoed prompt has no logprob: null.
    """

    def __init__(self, tokens: TokenTexts, echoed_ids: Sequence[int] = (), echoed_text: str = ""):
        """echoed_ids, echoed_text: the prompt where it is part of the answer, else empty."""
        self._tokens = tokens
        self._echoed_ids = list(echoed_ids)
        self._echoed_text = echoed_text
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._length = 0
        self._lists = self._empty()

    def add(self, chunk: TokenChunk) -> None:
        if self._echoed_ids:
            self._add_prompt(chunk.prompt_logprobs)
        for entry in chunk.logprobs:
            is_special = self._tokens.is_special(entry.token_id)
            self._append(entry, b"" if is_special else self._tokens.token_bytes(entry.token_id))

    def take(self) -> dict[str, Any] | None:
        lists, self._lists = self._lists, self._empty()
        return lists if lists["tokens"] else None

    def _add_prompt(self, prompt_logprobs: Iterable[TokenLogprobs]) -> None:
        first, self._echoed_ids = self._echoed_ids[0], []
        self._append(TokenLogprobs(first, 0.0), self._visible(first, at_start=True))
        self._lists["token_logprobs"][0] = self._lists["top_logprobs"][0] = None
        for entry in prompt_logprobs:
            self._append(entry, self._visible(entry.token_id, at_start=self._length == 0))

    def _visible(self, token_id: int, at_start: bool) -> bytes:
        """What the token adds to the echoed text: nothing for a control token that the tokenizer put in itself."""
        data = self._tokens.token_bytes(token_id)
        if self._tokens.is_special(token_id):
            return data if self._echoed_text.startswith(data.decode(), self._length) else b""
        if at_start and data.startswith(b" ") and not self._echoed_text.startswith(" "):
            return data[1:]  # some tokenizers put a blank before the first word
        return data

    def _append(self, entry: TokenLogprobs, visible: bytes) -> None:
        if visible and not self._goes_on_with(visible[0]):
            self._length += len(self._decoder.decode(b"", final=True))  # U+FFFD stands for what stays incomplete
        self._lists["text_offset"].append(self._length)
        self._length += len(self._decoder.decode(visible))
        self._lists["tokens"].append(self._name(entry.token_id))
        self._lists["token_logprobs"].append(entry.logprob)
        top = {self._name(token_id): logprob for token_id, logprob in entry.top}
        top.setdefault(self._name(entry.token_id), entry.logprob)  # the official API always names the token itself
        self._lists["top_logprobs"].append(top)

    def _goes_on_with(self, byte: int) -> bool:
        """Whether no character is incomplete, or the byte belongs to the one that is."""
        incomplete: bytes = self._decoder.getstate()[0]
        if not incomplete:
            return True
        try:
            getincrementaldecoder("utf-8")().decode(incomplete + bytes([byte]))
        except UnicodeDecodeError:
            return False
        return True

    def _name(self, token_id: int) -> str:
        data = self._tokens.token_bytes(token_id)
        text = escaped(data)
        return data.decode() if text is None else f"bytes:{text}"

    @staticmethod
    def _empty() -> dict[str, list[Any]]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
