"""How a command of ours is stopped: every signal that asks it to end becomes KeyboardInterrupt."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], object]
_AGAIN_SECONDS = 0.02


def take_interrupts() -> None:
    """Ctrl-C, `kill` and a closed terminal, also where a shell started this in the background, which leaves SIGINT
    ignored (`warmlane serve &` in a script). Only an ignored SIGHUP stays so: that is what nohup is for.

    Does nothing outside of the main thread, where Python takes no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, not_while_deleting(_interrupt))


def not_while_deleting(handler: Handler) -> Handler:
    """Python swallows what a handler raises while an object is being deleted, and the signal would be lost: then a
    timer calls the handler again in a moment."""

    def handle(signum: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "__del__":
                signal.signal(signal.SIGALRM, handle)
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
                return
            frame = frame.f_back
        handler(signum, frame)

    return handle


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
