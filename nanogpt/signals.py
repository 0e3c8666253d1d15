"""Stopping a run politely: the first signal asks, a second one insists."""

import contextlib
import os
import signal
import threading
import time

SIGNALS = (signal.SIGTERM, signal.SIGINT)

STDERR = 2

# torchrun passes on to its workers what the terminal has sent to them already.
SAME_REQUEST_S = 0.5


class StopSignals:
    """A context in which SIGTERM and SIGINT are noted instead of ending the process.

    A second one stops the process at once, as if there were no handler. Outside the main thread,
    where Python allows no handlers, nothing is installed. Former handlers come back at the end.

    Args:
        notice: A line for stderr when the first signal comes.

    Attributes:
        received: The number of the first signal, or None.
    """

    def __init__(self, notice: str = ""):
        self.notice = notice
        self.received: int | None = None
        self._former = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = number, now
            if self.notice:  # not by print: the signal may have come in the middle of one
                with contextlib.suppress(OSError):
                    os.write(STDERR, f"{self.notice}\n".encode())
        elif now - self._since > SAME_REQUEST_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def obey(number: int | None) -> None:
    """End as Python ends by a signal that was noted before; nothing if there was none.

    Raises:
        KeyboardInterrupt: For SIGINT.
        SystemExit: For another, with code 128 + number.
    """
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number is not None:
        raise SystemExit(128 + number)
