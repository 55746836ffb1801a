"""Grammars that answers must match, compiled once per text and engine."""

import re
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from tokenizers import Tokenizer

from replica.errors import RequestRefused
from replica.sampling.grammar_vocabulary import grammar_vocabulary

_QUOTED_GRAMMAR = re.compile(r"\n *\d+ \| .*", re.DOTALL)
_ADVICE = re.compile(r"\.? *Enable '\w+' option.*", re.DOTALL)
"""For options that no client has."""
_PLACE = re.compile(r"^at \d+\(\d+\): ")
_MAX_CACHED = 64


def grammar_problem(message: str) -> str:
    """On one line, without the grammar: clients know their schemas, not what is made of them."""
    text = _PLACE.sub("", _ADVICE.sub("", _QUOTED_GRAMMAR.sub("", message)))
    return " ".join(line.strip() for line in text.splitlines() if line.strip(" ^"))[:500]


class GrammarCompiler:
    """Compiling takes milliseconds to a second: `prepare` may be called from any thread and keeps the result, so that
    `matcher` only copies it. The engine's thread calls `matcher`."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]):
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compiling = threading.Lock()
        self._lock = threading.Lock()
        """Of the dictionary alone, so that the engine's thread never waits for a compilation."""
        self._vocabulary: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def prepare(self, grammar: str) -> None:
        """Raises RequestRefused where the grammar cannot be compiled."""
        with self._compiling:
            if self._copy(grammar) is None:
                compiled = self._compile(grammar)
                with self._lock:
                    self._compiled[grammar] = compiled
                    while len(self._compiled) > _MAX_CACHED:
                        self._compiled.popitem(last=False)

    def matcher(self, grammar: str) -> Any:
        """A fresh `llguidance.LLMatcher` at the grammar's start. Raises RequestRefused."""
        matcher = self._copy(grammar)
        while matcher is None:  # not prepared, or so long ago that others have taken its place
            self.prepare(grammar)
            matcher = self._copy(grammar)
        return matcher

    def _copy(self, grammar: str) -> Any:
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is None:
                return None
            self._compiled.move_to_end(grammar)
            return compiled.deep_copy()

    def _compile(self, grammar: str) -> Any:
        # Imported with the first grammar: most engines never see one.
        from llguidance import LLMatcher

        matcher = LLMatcher(self._ensure_vocabulary(), grammar, log_level=0)
        if matcher.is_error():
            message = grammar_problem(matcher.get_error())
            raise RequestRefused(f"the answer's grammar cannot be used: {message}", param="response_format")
        return matcher

    def _ensure_vocabulary(self) -> Any:
        if self._vocabulary is None:
            if not self._eos_token_ids:
                raise RequestRefused(
                    "this model has no end-of-text token, which a bounded answer needs", param="response_format"
                )
            self._vocabulary = grammar_vocabulary(self._tokenizer, self._vocab_size, self._eos_token_ids)
        return self._vocabulary
