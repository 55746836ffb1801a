"""What the engine needs to know of a loaded model's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer

from replica.sampling.grammar_compiler import GrammarCompiler
from replica.text.text_stream import TextStream


@dataclass(frozen=True)
class TokenizerVocabulary:
    """max_model_len: tokens of prompt and answer together. vocab_size: rows of the model's LM head."""

    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_model_len: int

    def text_stream(
        self, prompt_ids: Sequence[int], stop: Sequence[str], shown_token_ids: Sequence[int] = ()
    ) -> TextStream:
        return TextStream(self.tokenizer, prompt_ids, stop, shown_token_ids)

    @cached_property
    def grammars(self) -> GrammarCompiler:
        return GrammarCompiler(self.tokenizer, self.vocab_size, self.eos_token_ids)
