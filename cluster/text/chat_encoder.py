"""Tokenises rendered chats; of a chat's next turn only what is new."""

import re
from collections.abc import Sequence
from itertools import pairwise

from tokenizers import Tokenizer

from cluster.text.control_tokens import ControlTokens
from cluster.text.segment_cache import Segment, SegmentCache


class ChatEncoder:
    """Cuts a text at its seams (`cluster.text.chat_seams`), looks up the parts that it knows and tokenises the others.

    A part is a control token with what follows it, so an earlier turn that a template renders differently than before
    is simply another part: nothing depends on what the last request looked like. Without seams the text is one part.
    Any thread may call.
    """

    def __init__(self, tokenizer: Tokenizer, control_tokens: ControlTokens, seams: Sequence[str], cache: SegmentCache):
        self._tokenizer = tokenizer
        self._control_tokens = control_tokens
        self._cache = cache
        self._seam = re.compile("|".join(map(re.escape, seams))) if seams else None
        self.num_encoded_characters = 0
        """Of texts that were not known."""

    def encode(self, text: str, plain_at: Sequence[int] = (), space: str | None = None) -> list[int]:
        """Token ids of the whole text. plain_at: positions of control tokens that are only text, in order. space: whose
        parts may be known.

        Raises ControlTokenInText where one of those cannot be written as text.
        """
        segments = self._cut(text, plain_at, space)
        known = self._cache.find(segments)
        missing = list(dict.fromkeys(segment for segment in segments if segment not in known))
        for segment, ids in zip(missing, self._encode_all(missing), strict=True):
            known[segment] = self._cache.keep(segment, ids)
        whole: list[int] = []
        for segment in segments:
            whole.extend(known[segment])
        return whole

    def _cut(self, text: str, plain_at: Sequence[int], space: str | None) -> list[Segment]:
        if self._seam is None:
            return [Segment(space, text, tuple(plain_at))]
        plain = set(plain_at)
        starts = [match.start() for match in self._seam.finditer(text) if match.start() not in plain]
        bounds = [0, *starts, len(text)]
        parts = [(start, end) for start, end in pairwise(bounds) if end > start]
        if not plain:
            return [Segment(space, text[start:end]) for start, end in parts]
        return [
            Segment(space, text[start:end], tuple(at - start for at in plain_at if start <= at < end))
            for start, end in parts
        ]

    def _encode_all(self, segments: Sequence[Segment]) -> list[Sequence[int]]:
        self.num_encoded_characters += sum(len(segment.text) for segment in segments)
        ordinary = [segment.text for segment in segments if not segment.plain_at]
        encodings = iter(self._tokenizer.encode_batch_fast(ordinary, add_special_tokens=False) if ordinary else ())
        return [
            self._control_tokens.encode_around(segment.text, segment.plain_at)
            if segment.plain_at
            else next(encodings).ids
            for segment in segments
        ]
