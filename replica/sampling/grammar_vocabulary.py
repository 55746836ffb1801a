"""The vocabulary as grammars see it: which tokens are text, and which stand for themselves."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer


def grammar_vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> Any:
    """An `llguidance.LLTokenizer`.

    It takes every added token in angle brackets for a special one, which no text can match. But `<tool_call>` and
    `<think>` of Qwen and GLM are text that models write by these tokens; without them an answer under a grammar could
    only spell them out.
    """
    from llguidance import LLTokenizer

    vocabulary = LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=list(eos_token_ids))
    as_text = {
        id: token.content
        for id, token in tokenizer.get_added_tokens_decoder().items()
        if not token.special and id < vocab_size and vocabulary.is_special_token(id)
    }
    if not as_text:
        return vocabulary
    from llguidance import TokenizerWrapper

    return LLTokenizer(
        TokenizerWrapper(_Tokens(vocabulary, tokenizer, as_text, eos_token_ids[0])),
        n_vocab=vocab_size,
        eos_token=list(eos_token_ids),
    )


class _Tokens:
    """What TokenizerWrapper reads. tokens: the bytes of each id."""

    bos_token_id = None

    def __init__(self, vocabulary: Any, tokenizer: Tokenizer, as_text: dict[int, str], eos_token_id: int):
        ids = range(vocabulary.vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.special_token_ids = [id for id in ids if vocabulary.is_special_token(id) and id not in as_text]
        self.tokens = [as_text[id].encode() if id in as_text else vocabulary.decode_bytes([id]) for id in ids]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids
