"""What this router has sent out and not seen end."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cache.block_hasher import BlockKey
from cache.wire.records import Reservation
from router.load.views import LoadChange

TRANSIT_SECONDS = 0.1
"""A request may take so long from the decision until the engine's own numbers show it."""
KEYS_SHARED_SECONDS = 0.5
"""So long after it was sent the other routers are told which blocks a request brings: some polls of theirs."""
MAX_SHARED_KEYS = 4096
"""In one record, the newest requests first: it is written and read at each poll."""


class SentElsewhere(NamedTuple):
    """What another router sent. keys: blocks that will be there then, where they were told."""

    replica_id: str
    sent_at: float
    prefill_tokens: int
    keys: tuple[BlockKey, ...] = ()


@dataclass(slots=True)
class OpenReservation:
    """prefill_tokens: prompt tokens expected to be computed. first_token, first_token_at: whether and when it came.

    keys: blocks that it brings there and that nobody knew there. brought_tokens: computed there for it, or pulled.
    pull_from: the replica that gives the pulled ones; empty once they have come.
    """

    replica_id: str
    prefill_tokens: int
    sent_at: float
    lease_until: float
    first_token: bool = False
    first_token_at: float = 0.0
    keys: tuple[BlockKey, ...] = ()
    brought_tokens: int = 0
    pull_from: str = ""


def shared_reservations(
    entries: Iterable[OpenReservation], now: float, keys_seconds: float = KEYS_SHARED_SECONDS
) -> tuple[Reservation, ...]:
    """entries: the newest first. Their blocks go along where they are younger than `keys_seconds`, together at most
    MAX_SHARED_KEYS; of the last one then the first ones, for a prefix is what siblings share."""
    found, num_left = [], MAX_SHARED_KEYS
    for entry in entries:
        age = max(0.0, now - entry.sent_at)
        keys = entry.keys[:num_left] if age <= keys_seconds else ()
        num_left -= len(keys)
        found.append(Reservation(entry.replica_id, age, entry.prefill_tokens, keys))
    return tuple(found)


class ReservationLedger:
    """Reservations by request id. Load changes only here, and each increment has exactly one decrement (C4, C5, C11).

    `reserve` counts a request as waiting, `first_token` moves it to running, `end` takes it away; reserving again
    (after a refusal or a death) moves it, and a lease ends what nobody ended. Every method may be called at any time
    and again: for an unknown request it does nothing.
    """

    def __init__(self, on_change: Callable[[str, LoadChange], None], lease_seconds: float = 900.0):
        """on_change: told each change as (replica id, change). Raises ValueError for a lease that is not above 0."""
        if not lease_seconds > 0:
            raise ValueError(f"lease_seconds must be above 0, got {lease_seconds}")
        self._on_change = on_change
        self._lease_seconds = lease_seconds
        self._open: dict[str, OpenReservation] = {}  # in the order in which leases end
        self._num_pulls: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, request_id: str) -> OpenReservation | None:
        return self._open.get(request_id)

    def num_pulls(self, replica_id: str) -> int:
        """How many requests are on their way to take pages from there."""
        return self._num_pulls.get(replica_id, 0)

    def reserve(
        self, request_id: str, replica_id: str, prefill_tokens: int, now: float, pull_from: str = ""
    ) -> OpenReservation | None:
        """Returns the reservation that this one takes the place of."""
        before = self.end(request_id, now)
        entry = OpenReservation(replica_id, prefill_tokens, now, now + self._lease_seconds, pull_from=pull_from)
        self._open[request_id] = entry
        if pull_from:
            self._num_pulls[pull_from] += 1
        self._notify(entry, now, waiting=1, prefill_tokens=prefill_tokens)
        return before

    def first_token(self, request_id: str, now: float) -> None:
        entry = self._open.get(request_id)
        if entry is None or entry.first_token:
            return
        self._notify(entry, now, waiting=-1, running=1, prefill_tokens=-entry.prefill_tokens)
        entry.first_token, entry.first_token_at = True, now
        self._pulled(entry)
        entry.keys = ()  # computed by now, and published: nobody is told any more
        entry.lease_until = now + self._lease_seconds
        self._open[request_id] = self._open.pop(request_id)

    def end(self, request_id: str, now: float) -> OpenReservation | None:
        entry = self._open.pop(request_id, None)
        if entry is not None:
            self._pulled(entry)
            if entry.first_token:
                self._notify(entry, now, running=-1)
            else:
                self._notify(entry, now, waiting=-1, prefill_tokens=-entry.prefill_tokens)
        return entry

    def end_expired(self, now: float) -> int:
        """Ends what nobody ended within its lease; how many there were."""
        expired = []
        for request_id, entry in self._open.items():
            if entry.lease_until > now:
                break
            expired.append(request_id)
        for request_id in expired:
            self.end(request_id, now)
        return len(expired)

    def sent_since(self, moment: float, limit: int) -> list[OpenReservation]:
        """The newest reservations without a first token that were made after `moment`."""
        found: list[OpenReservation] = []
        for entry in reversed(self._open.values()):
            if len(found) == limit:
                break
            if entry.sent_at > moment and not entry.first_token:
                found.append(entry)
        return found

    def _pulled(self, entry: OpenReservation) -> None:
        if entry.pull_from:
            self._num_pulls[entry.pull_from] -= 1
            if not self._num_pulls[entry.pull_from]:
                del self._num_pulls[entry.pull_from]
            entry.pull_from = ""

    def _notify(
        self, entry: OpenReservation, now: float, waiting: int = 0, running: int = 0, prefill_tokens: int = 0
    ) -> None:
        shown_at = max(now, entry.sent_at + TRANSIT_SECONDS)
        self._on_change(entry.replica_id, LoadChange(shown_at, waiting, running, prefill_tokens))
