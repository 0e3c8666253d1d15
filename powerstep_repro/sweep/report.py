"""What a sweep tells people while it works: a live table on a terminal, plain lines elsewhere."""

import contextlib
import math
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from powerstep_repro.sweep.estimate import duration, makespan
from powerstep_repro.sweep.plan import Entry
from powerstep_repro.sweep.state import last_row

PLAIN_SECONDS = 60.0  # how often the plain form says where the runs are
LIVE_SECONDS = 1.0  # how often the live form reads the runs' logs


def loss_text(row: dict, *keys: str) -> str:
    """The first of ``keys`` that ``row`` has, with three decimals; a dash without one."""
    for key in keys:
        value = row.get(key)
        if value is not None:
            return f"{value:.3f}" if math.isfinite(value) else str(value)
    return "-"


class Pace:
    """Time left of each running run, from the steps it was seen to make."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._first: dict[str, tuple[float, int]] = {}

    def begin(self, entry: Entry, step: int) -> None:
        """The run is started, or started again, at ``step``."""
        self._first[entry.name] = (self._clock(), step)

    def left(self, entry: Entry, step: int) -> float | None:
        """Seconds until the run's last step; None until it has been seen to move."""
        began, first_step = self._first[entry.name]
        if step <= first_step:
            return None
        each = (self._clock() - began) / (step - first_step)
        return each * (entry.config["steps"] - step)


class Reporter:
    """Prints what happens in a sweep, one line an event, and now and then where the runs are.

    Args:
        total: runs in the sweep.
        done: how many of them were done before.
        console: where to write.
    """

    every = PLAIN_SECONDS

    def __init__(self, total: int, done: int, console: Console):
        self.total = total
        self.done = done
        self.failures = 0
        self.console = console
        self.pace = Pace()
        self._last_tick = time.monotonic()

    @contextlib.contextmanager
    def watching(self, pool):
        """Surrounds the work of ``pool``."""
        yield

    def say(self, text: str) -> None:
        """Print one line; run names are never cut or coloured."""
        self.console.print(Text(text), soft_wrap=True)

    def _count(self) -> str:
        return f"[{self.done + self.failures}/{self.total}]"

    def started(self, active) -> None:
        """A run's process was started."""
        self.pace.begin(active.entry, last_row(active.entry.run_dir).get("step", 0))
        verb = {"resume": "resumes", "retry": "starts again"}.get(active.entry.state, "starts")
        self.say(f"{self._count()} {verb}: {active.entry.label} on {active.worker.label}")

    def ended(self, entry: Entry, active) -> None:
        """A run is done; ``active`` is None if another process did it."""
        self.done += 1
        summary = entry.summary
        result = f"validation loss {loss_text(summary, 'final_val_loss')}"
        if summary.get("status") == "diverged":
            result = f"diverged at step {summary.get('diverged_at')}"
        how = f"in {duration(time.time() - active.started)}" if active else "by another process"
        self.say(f"{self._count()} done: {entry.label}, {result}, {how}")

    def failed(self, entry: Entry, why: str) -> None:
        """A run has failed and is not tried again."""
        self.failures += 1
        self.say(f"{self._count()} FAILED: {entry.label}: {why}")

    def again(self, entry: Entry, why: str) -> None:
        """A run was killed from outside and will be started again."""
        self.say(f"{self._count()} {why}: {entry.label}; it goes on where it was")

    def waiting(self, entry: Entry) -> None:
        """Another process holds the run."""
        self.say(f"{self._count()} waits: another process trains {entry.label}")

    def interrupted(self, entry: Entry) -> None:
        """A run was stopped together with the sweep."""
        step = entry.summary.get("steps") or 0
        self.say(f"{self._count()} stopped: {entry.label} at step {step}")

    def stopping(self, number: int, count: int) -> None:
        """The sweep was sent a signal, the ``count``-th."""
        self.say(
            {
                1: "stopping: the runs finish their step and save (once more: without saving)",
                2: "stopping at once (once more: killing)",
            }.get(count, "killing")
        )

    def tick(self, pool) -> None:
        """Called many times a second; does something every ``self.every`` seconds."""
        if time.monotonic() - self._last_tick >= self.every:
            self._last_tick = time.monotonic()
            self.show(pool)

    def show(self, pool) -> None:
        """Say where the runs are."""
        for active in pool.active:
            row = last_row(active.entry.run_dir)
            step = row.get("step", 0)
            left = self.pace.left(active.entry, step)
            eta = f", {duration(left)} left" if left is not None else ""
            self.say(
                f"{self._count()} {active.entry.label}: step {step} of "
                f"{active.entry.config['steps']}, loss {loss_text(row, 'train_loss')}{eta}"
            )


class LiveReporter(Reporter):
    """The same events above a table of workers that is redrawn in place."""

    every = LIVE_SECONDS

    @contextlib.contextmanager
    def watching(self, pool):
        """Keeps the table on the screen while ``pool`` works."""
        with Live(console=self.console, auto_refresh=False, transient=True) as self._live:
            yield

    def show(self, pool) -> None:
        """Redraw the table: a row a worker, then the whole sweep in one line."""
        table = Table(box=None, pad_edge=False)
        for column in ("worker", "run", "step", "loss", "left"):
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        remaining = []
        for active in sorted(pool.active, key=lambda active: active.worker.index):
            row = last_row(active.entry.run_dir)
            step = row.get("step", 0)
            left = self.pace.left(active.entry, step)
            remaining.append(left if left is not None else active.entry.seconds)
            table.add_row(
                active.worker.label,
                active.entry.label.replace(f"-{active.entry.name.rpartition('-')[2]}", "", 1),
                f"{step}/{active.entry.config['steps']}",
                loss_text(row, "train_loss"),
                duration(left) if left is not None else "...",
            )
        remaining += [entry.seconds for entry in pool.queue]
        waiting = len(pool.queue) + len(pool.busy)
        line = (
            f"{self.done} done, {self.failures} failed, {len(pool.active)} running, {waiting} left"
        )
        if remaining and None not in remaining:
            line += f"; about {duration(makespan(remaining, len(pool.active)))}"
        self._live.update(Group(table, Text(line)), refresh=True)


def reporter(total: int, done: int, console: Console) -> Reporter:
    """The form that suits ``console``."""
    kind = LiveReporter if console.is_terminal else Reporter
    return kind(total, done, console)
