"""Grammars that answers must match, compiled once per text and engine."""

import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from tokenizers import Tokenizer

from replica.errors import RequestRefused

_MAX_CACHED = 64


class GrammarCompiler:
    """Compiling takes milliseconds to a second: `prepare` may be called from any thread and keeps the result, so that
    `matcher` only copies it. The engine's thread calls `matcher`."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._vocabulary: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def prepare(self, grammar: str) -> None:
        """Raises RequestRefused where the grammar cannot be compiled."""
        with self._lock:
            self._compile(grammar)

    def matcher(self, grammar: str) -> Any:
        """A fresh `llguidance.LLMatcher` at the grammar's start. Raises RequestRefused."""
        with self._lock:
            return self._compile(grammar).deep_copy()

    def _compile(self, grammar: str) -> Any:
        matcher = self._compiled.get(grammar)
        if matcher is None:
            # Imported with the first grammar: most engines never see one.
            from llguidance import LLMatcher

            matcher = LLMatcher(self._ensure_vocabulary(), grammar, log_level=0)
            if matcher.is_error():
                message = matcher.get_error().splitlines()[0][:500]
                raise RequestRefused(f"the answer's grammar cannot be used: {message}", param="response_format")
            self._compiled[grammar] = matcher
        self._compiled.move_to_end(grammar)
        while len(self._compiled) > _MAX_CACHED:
            self._compiled.popitem(last=False)
        return matcher

    def _ensure_vocabulary(self) -> Any:
        if self._vocabulary is None:
            from llguidance import LLTokenizer

            if not self._eos_token_ids:
                raise RequestRefused(
                    "this model has no end-of-text token, which a bounded answer needs", param="response_format"
                )
            self._vocabulary = LLTokenizer(
                self._tokenizer.to_str(), n_vocab=self._vocab_size, eos_token=self._eos_token_ids
            )
        return self._vocabulary
