"""How a command of ours is stopped: every signal that asks it to end becomes KeyboardInterrupt."""

import signal
import threading
from types import FrameType
from typing import NoReturn


def take_interrupts() -> None:
    """Ctrl-C, `kill` and a closed terminal, also where a shell started this in the background, which leaves SIGINT
    ignored (`warmlane serve &` in a script). Only an ignored SIGHUP stays so: that is what nohup is for.

    Does nothing outside of the main thread, where Python takes no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
