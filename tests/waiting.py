"""How tests wait: for a state, never for a time, so that none of them depends on the speed of the machine.

The bound is far above what a machine needs that does other work beside; it ends a test whose state never comes.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

BOUND_SECONDS = 120.0


def wait_until(condition: Callable[[], T], what: str = "what is waited for", seconds: float = BOUND_SECONDS) -> T:
    """Polls until the condition gives something true and returns that. AssertionError names `what`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{seconds:.0f} s passed, but not: {what}"
        time.sleep(0.01)
    return value


async def eventually(condition: Callable[[], object], seconds: float = BOUND_SECONDS) -> None:
    """The same beside an event loop that goes on. TimeoutError when the state does not come."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is polled is another thread's state, or is at another end
            await asyncio.sleep(0.001)


def let_time_pass(seconds: float) -> None:
    """Fires now what the running event loop's timers hold for that time; for what is to happen after a timeout."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]
