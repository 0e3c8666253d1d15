"""Stopping a run politely: the first signal asks, a second one insists."""

import contextlib
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

STDOUT, STDERR = 1, 2

# torchrun passes on to its workers what the terminal has sent to them already.
SAME_REQUEST_S = 0.5


@contextlib.contextmanager
def handling(handler: Callable[[int, Any], None], numbers: Iterable[int]) -> Iterator[None]:
    """A context in which signals call ``handler``; former handlers come back at the end.

    A signal that the process was started to ignore (``nohup``) stays ignored. Outside the main
    thread, where Python allows no handlers, nothing is installed.
    """
    former = {}
    if threading.current_thread() is threading.main_thread():
        wanted = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
        former = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


class StopSignals:
    """A context in which SIGTERM, SIGINT and SIGHUP are noted instead of ending the process.

    SIGHUP, a terminal that has gone, counts as SIGTERM. A second signal stops the process at once,
    as if there were no handler.

    Args:
        notice: A line for stderr when the first signal comes.

    Attributes:
        received: The first signal, one of ``SIGNALS``, or None.
    """

    def __init__(self, notice: str = ""):
        self.notice = notice
        self.received: int | None = None

    def __enter__(self) -> "StopSignals":
        self._handlers = handling(self._note, (*SIGNALS, signal.SIGHUP))
        self._handlers.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self._handlers.__exit__(*exception)

    def _note(self, number: int, _frame: Any) -> None:
        if number == signal.SIGHUP:
            number = signal.SIGTERM
            leave_terminal()
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


def leave_terminal() -> None:
    """Print to nowhere what would go to a terminal: writing to one that has gone is an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (STDOUT, STDERR):
        if stat.S_ISCHR(os.fstat(stream).st_mode):  # a terminal, even one that has gone
            os.dup2(nowhere, stream)
    os.close(nowhere)
