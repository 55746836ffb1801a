"""Small tokenizers of every make that published chat models use, with a chat format."""

from collections.abc import Callable, Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.cluster.text.small_tokenizer import CONTROL_TOKENS

TEXT = ["the quick brown fox jumps over the lazy dog. you are a helpful assistant.\n\nsystem user assistant 123 " * 8]


def byte_level_bpe() -> Tokenizer:
    """GPT-2, Llama 3, Qwen, SmolLM2."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def byte_level_with_prefix_space() -> Tokenizer:
    """RoBERTa, some OPT."""
    tokenizer = byte_level_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def metaspace_bpe(prepend_scheme: str = "first") -> Tokenizer:
    """Llama 2 and Mistral in their newer form: the blank in front is only for the text's beginning."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def normalized_bpe() -> Tokenizer:
    """Llama 2 in its older form: blanks by the normaliser, no pre-tokeniser."""
    tokenizer = metaspace_bpe()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def unigram() -> Tokenizer:
    """T5, Gemma 1 by make."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT: lower case, accents stripped."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


MAKES: Mapping[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level_bpe,
    "byte level with a blank in front": byte_level_with_prefix_space,
    "metaspace, first": metaspace_bpe,
    "metaspace, always": lambda: metaspace_bpe("always"),
    "normalised": normalized_bpe,
    "unigram": unigram,
    "word piece": word_piece,
}


def with_control_tokens(tokenizer: Tokenizer, *more: AddedToken) -> Tokenizer:
    """more: added tokens besides those of the chat format."""
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    for token in more:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer
