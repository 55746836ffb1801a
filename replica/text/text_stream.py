"""The text of one request as the client may see it."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from replica.text.detokenizer import Detokenizer


class StopChecker:
    """Lets text through except a suffix that is a proper beginning of a stop string (8).

    The stop string that is complete first ends the text just before itself, whatever chunks the text came in; of
    several that end at the same character, the longest.
    """

    def __init__(self, stop: Sequence[str]):
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Returns the text that is safe to send now."""
        if self.stopped or not self._stop:
            return "" if self.stopped else text
        text = self._held + text
        found = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = self._num_held(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _num_held(self, text: str) -> int:
        longest = min(len(text), max(len(stop) for stop in self._stop) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0

    def flush(self) -> str:
        """The generation ended for another reason: what was held back is text after all."""
        text, self._held = self._held, ""
        return text


class TextStream:
    """Detokeniser and stop strings in one: what is sent chunk by chunk equals the text of the whole (A40)."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], stop: Sequence[str], shown_token_ids: Sequence[int] = ()
    ):
        """shown_token_ids: special tokens whose names are text here."""
        self._shown = {token_id: tokenizer.id_to_token(token_id) or "" for token_id in shown_token_ids}
        self._detokenizer = Detokenizer(tokenizer, prompt_ids)
        self._stop = StopChecker(stop)

    @property
    def stopped(self) -> bool:
        """A stop string was seen; no more text will come."""
        return self._stop.stopped

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """The text that this token made safe to send. may_stop: False where no stop string is to be looked for yet."""
        if token_id in self._shown:
            text = self._detokenizer.flush() + self._shown[token_id]
        else:
            text = self._detokenizer.push(token_id)
        return self._looked_at(text, may_stop)

    def flush(self, may_stop: bool = True) -> str:
        """The rest, when the generation has ended. It may complete a stop string: `stopped` says so."""
        return self._looked_at(self._detokenizer.flush(), may_stop) + self._stop.flush()

    def _looked_at(self, text: str, may_stop: bool) -> str:
        return self._stop.push(text) if may_stop else text
