"""What a person sees of a run while it trains."""

import sys
import time
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from powerstep_repro.errors import tell

_LINE_INTERVAL_S = 10.0
# Steps over which the displayed loss and speed are averaged.
_SMOOTHING = 20


class Progress:
    """Shows each step's row: a live line on a terminal, plain lines elsewhere.

    Plain lines come at the first step, at evaluations, and every ten seconds besides.

    Args:
        again: The run was started before; that it found nothing to go on from is worth a line.
    """

    def __init__(self, again: bool = False):
        self._again = again
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            disable=not sys.stdout.isatty(),
        )
        self._loss = self._seconds = self._printed = None
        self._val = ""

    def __enter__(self) -> "Progress":
        if not self._bars.disable:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._bars.disable:  # off a terminal it would print an empty line
            self._bars.stop()

    def __call__(self, row: dict[str, Any], steps: int) -> None:
        """Show a step.

        Args:
            row: The step's row, as logged.
            steps: Length of the run.
        """
        step, first = row["step"], self._loss is None
        if first and step > 1:
            self._say(f"resuming after step {step - 1}")
        elif first and self._again:
            self._say("no checkpoint: starts at step 1")
        self._average(row)
        text = self._text(row, steps)
        now = time.monotonic()
        if not self._bars.disable:
            if first:
                self._task = self._bars.add_task(text, total=steps)
            self._bars.update(self._task, completed=step, description=text)
        elif first or now - self._printed >= _LINE_INTERVAL_S or "val_loss" in row:
            self._printed = now
            tell(f"step {step}/{steps}  {text}")

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
        # The live line keeps the last evaluation in sight; a plain one says it once.
        if "val_loss" in row:
            self._val = f"  val {row['val_loss']:.4f}"
        elif self._bars.disable:
            self._val = ""
        return f"loss {self._loss:.4f}{self._val}  {speed:,.0f} tokens/s  ETA {left}"

    def _say(self, line: str) -> None:
        if self._bars.disable:
            tell(line)
        else:
            self._bars.console.print(line)
