"""Starts the cluster's own Redis again whenever it has died."""

import time
from collections.abc import Callable

from cluster.local.embedded_redis import EmbeddedRedis, RedisUnavailable

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A server that ran so long is started again at once when it dies: what killed the one before it is over."""


class RedisKeeper:
    """Same socket and same settings, so clients find it by the URL that they have; its contents are lost, and their
    owners write them again (C27).

    The first death is answered at once. Where the server dies again soon or does not start, the pauses double.
    """

    def __init__(
        self, server: EmbeddedRedis, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """report: gets one sentence for each death and each failed start. clock: seconds."""
        self._server = server
        self._report = report
        self._clock = clock
        self._pause = 0.0
        self._last_try = clock()

    def check(self) -> None:
        """Call it often, from the thread that started the server. Blocks while a server starts (START_SECONDS at most);
        an exception of a signal handler may end it at any point, `EmbeddedRedis.stop` then ends what runs."""
        passed = self._clock() - self._last_try
        if self._server.is_running:
            if passed >= STEADY_SECONDS:
                self._pause = 0.0
            return
        if passed < self._pause:
            return
        ending = f" ({self._server.ending})" if self._server.ending else ""  # none of a start that came to nothing
        self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
        try:
            self._server.start()
            self._report(f"Redis had ended{ending} and is started again.")
        except (RedisUnavailable, OSError) as error:
            self._report(f"Redis has ended and cannot be started, next try in {self._pause:.0f} s: {error}")
        self._last_try = self._clock()
