"""What a person sees of a run while it trains."""

import sys
import threading
import time
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from powerstep_repro.errors import tell

_LINE_INTERVAL_S = 10.0
# By then a first step has ended, compiled or not, unless it is far larger than what it runs on.
_LONG_FIRST_STEP_S = 60.0
# Steps over which the displayed loss and speed are averaged.
_SMOOTHING = 20


class Progress:
    """Shows each step's row: a live line on a terminal, plain lines elsewhere.

    Plain lines come at the first step, at evaluations, and every ten seconds besides.

    Args:
        again: The run was started before; that it found nothing to go on from is worth a line.
        size: What a step takes, in words: a line says so where the first one is long under way.
    """

    def __init__(self, again: bool = False, size: str = ""):
        self._again = again
        self._long = threading.Timer(
            _LONG_FIRST_STEP_S, self._say, [f"still in the first step: {size}"]
        )
        self._long.daemon = True
        self._size = size
        self._live: RichProgress | None = None
        self._task = None
        self._loss = self._seconds = None
        self._val = ""
        self._printed = -_LINE_INTERVAL_S
        self._first = True

    def __enter__(self) -> "Progress":
        if sys.stdout.isatty():
            self._live = RichProgress(
                TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn()
            )
            self._live.start()
        if self._size:
            self._long.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._long.cancel()
        if self._live is not None:
            self._live.stop()

    def __call__(self, row: dict[str, Any], steps: int) -> None:
        """Show a step.

        Args:
            row: The step's row, as logged.
            steps: Length of the run.
        """
        step = row["step"]
        self._long.cancel()
        if self._first and step > 1:
            self._say(f"resuming after step {step - 1}")
        elif self._first and self._again:
            self._say("no checkpoint: starts at step 1")
        self._average(row)
        if self._live is not None:
            if self._task is None:
                self._task = self._live.add_task("", total=steps)
            self._live.update(self._task, completed=step, description=self._text(row, steps))
        else:
            due = time.monotonic() - self._printed >= _LINE_INTERVAL_S
            if self._first or due or "val_loss" in row:
                self._printed = time.monotonic()
                self._say(f"step {step}/{steps}  {self._text(row, steps)}")
        self._first = False

    def _average(self, row: dict[str, Any]) -> None:
        seconds, loss = row["step_ms"] / 1e3, row["train_loss"]
        # The first step carries compilation and warming up: it does not set the pace.
        if self._seconds is None or row["step"] == 2:
            self._seconds, self._loss = seconds, loss
            return
        self._seconds += (seconds - self._seconds) / _SMOOTHING
        self._loss += (loss - self._loss) / _SMOOTHING

    def _text(self, row: dict[str, Any], steps: int) -> str:
        speed = row["tokens_per_s"] * (row["step_ms"] / 1e3) / self._seconds
        left = timedelta(seconds=round((steps - row["step"]) * self._seconds))
        if "val_loss" in row:
            self._val = f"  val {row['val_loss']:.4f}"
        # The live line keeps the last evaluation in sight; a plain one says it once.
        val = self._val if self._live is not None or "val_loss" in row else ""
        return f"loss {self._loss:.4f}{val}  {speed:,.0f} tokens/s  ETA {left}"

    def _say(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line)
        else:
            tell(line)
