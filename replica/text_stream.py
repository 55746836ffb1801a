"""The text of one request as the client may see it."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from replica.detokenizer import Detokenizer
from replica.stop_checker import StopChecker


class TextStream:
    """Detokeniser and stop strings in one: what is sent chunk by chunk equals the text of the whole (A40)."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], stop: Sequence[str]):
        self._detokenizer = Detokenizer(tokenizer, prompt_ids)
        self._stop = StopChecker(stop)

    @property
    def stopped(self) -> bool:
        """A stop string was seen; no more text will come."""
        return self._stop.stopped

    def push(self, token_id: int) -> str:
        return self._stop.push(self._detokenizer.push(token_id))

    def flush(self) -> str:
        """The rest, when the generation has ended without a stop string."""
        return self._stop.push(self._detokenizer.flush()) + self._stop.flush()
