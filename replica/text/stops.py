"""Finds stop strings in growing text and holds back what might become one."""

from collections.abc import Sequence


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
