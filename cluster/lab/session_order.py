"""In which order many people's sessions come, when the trace has no times that say so."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from cluster.lab.trace import Trace, TraceRequest


def interleave(sessions: Sequence[list[TraceRequest]], rng: Random, num_open: int = 32) -> list[TraceRequest]:
    """`num_open` sessions are talking at any time; the next turn comes from one of the half that waited longest."""
    waiting = list(reversed(sessions))
    talking: list[Iterator[TraceRequest]] = []
    mixed: list[TraceRequest] = []
    while waiting or talking:
        while waiting and len(talking) < num_open:
            talking.append(iter(waiting.pop()))
        chosen = talking.pop(rng.randrange((len(talking) + 1) // 2))
        request = next(chosen, None)
        if request is not None:
            mixed.append(request)
            talking.append(chosen)
    return mixed


def reordered(trace: Trace, seed: int) -> Trace:
    """The same requests with the sessions in an order of the seed's own, without times; turns of a session keep theirs.

    So that chance in the order is part of what the seeds of a comparison show.
    """
    sessions: dict[str, list[TraceRequest]] = {}
    for number, request in enumerate(trace.requests):
        timeless = request if request.at_seconds is None else replace(request, at_seconds=None)
        sessions.setdefault(request.session or f"#{number}", []).append(timeless)
    rng = Random(f"order of sessions {seed}")
    shuffled = list(sessions.values())
    rng.shuffle(shuffled)
    return Trace(trace.name, interleave(shuffled, rng), trace.origin)
