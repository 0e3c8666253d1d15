"""What a sweep tells people while it works: a bar on a terminal, a line an event everywhere."""

import contextlib
import math
import time
from collections.abc import Iterator
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from powerstep_repro.sweep.plan import Entry


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class Overview:
    """Counts a sweep's runs, and shows how many are done, running and to do, and the time.

    Args:
        total: Runs in the sweep.
        done: How many of them were done before.
        console: Where to write.
    """

    def __init__(self, total: int, done: int, console: Console):
        self.total, self.done, self.failed, self.running = total, done, 0, 0
        self.before, self.began = done, time.monotonic()
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(self.state, total=total, completed=done)

    @property
    def state(self) -> str:
        """The whole sweep in one line; the time left assumes that the pace so far stays."""
        ended = self.done + self.failed
        left = self.total - ended - self.running
        spent = time.monotonic() - self.began
        line = f"{self.done} done, {self.running} running, {left} to do"
        line += f", {self.failed} failed" if self.failed else ""
        line += f"; {_clock(spent)} so far"
        if ended > self.before and ended < self.total:
            each = spent / (ended - self.before)
            line += f", about {_clock(each * (self.total - ended))} left"
        return line

    @contextlib.contextmanager
    def shown(self) -> Iterator["Overview"]:
        """Keep the bar on the screen; nothing is drawn where there is none."""
        with contextlib.nullcontext() if self._bar.disable else self._bar:
            yield self

    def tick(self) -> None:
        """Bring the bar's text up to date."""
        self._bar.update(self._task, description=self.state, completed=self.done + self.failed)

    def say(self, text: str) -> None:
        """Print one line, never cut or coloured; nobody able to read it is no reason to stop."""
        with contextlib.suppress(OSError):
            self.console.print(Text(text), soft_wrap=True)

    def started(self, entry: Entry, where: str) -> None:
        """A run's process was started."""
        verb = {"resume": "resumes", "retry": "starts again"}.get(entry.state, "starts")
        self.running += 1
        self.say(f"{verb}: {entry.label} on {where}")

    def ended(self, entry: Entry, seconds: float | None = None) -> None:
        """A run is done; ``seconds`` is None if another process did it."""
        self.done += 1
        loss = entry.summary.get("final_val_loss")
        result = f"validation loss {math.nan if loss is None else loss:.3f}"
        if entry.summary.get("status") == "diverged":
            result = f"diverged at step {entry.summary.get('diverged_at')}"
        how = "by another process" if seconds is None else f"in {_clock(seconds)}"
        self.say(f"done: {entry.label}, {result}, {how} ({self.state})")

    def failure(self, entry: Entry, why: str) -> None:
        """A run has failed and is not tried again."""
        self.failed += 1
        self.say(f"FAILED: {entry.label}: {why} ({self.state})")
