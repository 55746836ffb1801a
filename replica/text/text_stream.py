"""The text of one request as the client may see it."""

from collections.abc import Sequence

from tokenizers import Tokenizer

from replica.text.detokenizer import Detokenizer
from replica.text.stops import StopChecker


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
