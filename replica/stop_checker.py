"""Finds stop strings in growing text and holds back what might become one."""

from collections.abc import Sequence


class StopChecker:
    """Lets text through except a suffix that is a proper beginning of a stop string (8).

    After a stop string was seen the text has ended just before it, whatever chunks it came in.
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
        found = [position for position in (text.find(stop) for stop in self._stop) if position >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
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
