"""`make bench-tokenization`: what the next turn of a long chat costs to tokenise, with its turns so far known and not.

Pairs in turn in one process, each on a chat of its own that nobody tokenised before; both sides must give the same ids.
Writes tests/benchmarks/out/tokenization.json.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.lab.conversations import load_conversations
from cluster.models.store import resolve_model
from cluster.text.chat_encoder import ChatEncoder
from cluster.text.segment_cache import SegmentCache
from cluster.text.tokenization import ChatTokenizer
from tests.benchmarks.report import Report

OUT = Path(__file__).parent / "out" / "tokenization.json"
CHARACTERS = {"user": 200, "assistant": 600}
"""Of each message."""


class Chats:
    """Chats of recorded sentences in an order of their own, each at least so many tokens long before its last turn."""

    def __init__(self, tokenizer: ChatTokenizer, num_tokens: int):
        self._tokenizer = tokenizer
        self._num_tokens = num_tokens
        texts = (answer for conversation in load_conversations() for answer in _texts(conversation))
        self._sentences = [sentence for text in texts for sentence in text.split(". ") if sentence]

    def one(self, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The messages of one request, and those that the next one adds: the answer and what the user says to it."""
        rng = random.Random(seed)
        messages = [{"role": "system", "content": self._text(rng, 1200)}, self._message(rng, "user")]
        while self._length(messages) < self._num_tokens:
            messages += [self._message(rng, "assistant"), self._message(rng, "user")]
        return messages, [self._message(rng, "assistant"), self._message(rng, "user")]

    def _message(self, rng: random.Random, role: str) -> dict[str, Any]:
        return {"role": role, "content": self._text(rng, CHARACTERS[role])}

    def _text(self, rng: random.Random, num_characters: int) -> str:
        text = ""
        while len(text) < num_characters:
            text += rng.choice(self._sentences) + ". "
        return text

    def _length(self, messages: list[dict[str, Any]]) -> int:
        return len(self._tokenizer._backend.encode(self._tokenizer.render(messages), add_special_tokens=False).ids)


def _texts(conversation: Any) -> list[str]:
    return [text for exchange in conversation.exchanges for text in (exchange.user, exchange.assistant)]


class Sides:
    """One tokenizer with two encoders: one that remembers, and one that is new for each request."""

    def __init__(self, tokenizer: ChatTokenizer):
        self._tokenizer = tokenizer
        self._remembering = tokenizer._chat_encoder

    def seconds(self, messages: list[dict[str, Any]], remembering: bool) -> tuple[float, list[int]]:
        """Template, control tokens and tokenising, as a request has them."""
        tokenizer = self._tokenizer
        fresh = ChatEncoder(tokenizer._backend, tokenizer._control_tokens, (), SegmentCache())
        tokenizer._chat_encoder = self._remembering if remembering else fresh
        started = time.perf_counter()
        ids = tokenizer._encode_chat(messages, (), None)
        return time.perf_counter() - started, ids


def measure(sides: Sides, chats: Chats, num_pairs: int) -> list[tuple[float, float, float, int]]:
    """Seconds with the turns before known, from scratch, and of the new turn alone; tokens of the prompt."""
    found = []
    for seed in range(num_pairs + 1):
        messages, new = chats.one(seed)
        sides.seconds(messages, remembering=True)  # the request before
        order = [True, False] if seed % 2 else [False, True]
        results = {remembering: sides.seconds(messages + new, remembering) for remembering in order}
        if results[True][1] != results[False][1]:
            raise RuntimeError(f"chat {seed} has other ids with known turns than from scratch")
        alone, _ = sides.seconds(new, remembering=False)
        if seed:  # the first pair warms up
            found.append((results[True][0], results[False][0], alone, len(results[True][1])))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench-tokenization")
    parser.add_argument("--tokens", type=int, default=6000, help="of the chat before its next turn (default: 6000)")
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args(argv)
    console = Console()
    tokenizer = ChatTokenizer(str(resolve_model(console=console)))
    pairs = measure(Sides(tokenizer), Chats(tokenizer, args.tokens), args.pairs)
    known, scratch, alone, counts = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(theirs / ours for ours, theirs, _, _ in pairs)
    report = Report({})
    report.add_row(
        f"next turn of a chat of {counts:,.0f} tokens", "ms", 1000 * known,
        ratio={"from scratch": [ratios[0], statistics.median(ratios), ratios[-1]]},
        peers={"from scratch": 1000 * scratch}, same={"from scratch": [len(pairs), len(pairs)]},
    )  # fmt: skip
    report.add_row("its new messages alone", "ms", 1000 * alone)
    report.write(OUT)
    report.show(console)
    console.print(f"{OUT} written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
