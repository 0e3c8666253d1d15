"""The plan of a sweep: each of its runs, what is there of it, and what it will take."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from powerstep_repro.sweep.estimate import History, duration, makespan
from powerstep_repro.sweep.state import BUSY, DAMAGED, DONE, NEW, RESUME, RETRY, classify

IN_NAME = {"model", "optimizer", "lr", "seed"}  # overrides that a run's name tells

# The order of work: cut runs first (they hold finished work), failed ones last (so that a run which
# always fails delays nothing), runs that another process trains only at the very end.
RANK = {RESUME: 0, NEW: 1, DAMAGED: 1, RETRY: 2, BUSY: 3, DONE: 4}
LABEL = {
    NEW: "to do",
    RESUME: "to resume",
    DAMAGED: "config.yaml damaged, to do again",
    RETRY: "failed, to retry",
    DONE: "done",
    BUSY: "being trained by another process",
}


@dataclass
class Entry:
    """One run of a sweep.

    Args:
        overrides: Hydra overrides that make the run, as handed to the train command.
        config: the resolved config they compose to.
        run_dir: where the run's record is, or will be.
    """

    overrides: tuple[str, ...]
    config: dict
    run_dir: Path
    state: str = NEW
    summary: dict = field(default_factory=dict)
    seconds: float | None = None
    source: str = "unknown"
    varied: str = ""

    @property
    def name(self) -> str:
        """The run's directory name."""
        return self.run_dir.name

    @property
    def label(self) -> str:
        """The name, and what sets the run apart in its sweep if the name does not tell."""
        return f"{self.name} ({self.varied})" if self.varied else self.name

    def refresh(self) -> str:
        """Read the state from disk again and return it."""
        self.state, self.summary = classify(self.run_dir)
        return self.state


def take_stock(entries: Iterable[Entry], history: History) -> list[Entry]:
    """Fill in each entry's state, estimated time and label; returns them in the order given."""
    entries = list(entries)
    overrides = [dict(text.split("=", 1) for text in entry.overrides) for entry in entries]
    keys = dict.fromkeys(key for each in overrides for key in each if key not in IN_NAME)
    varied = [key for key in keys if len({each.get(key) for each in overrides}) > 1]
    for entry, own in zip(entries, overrides, strict=True):
        entry.varied = ", ".join(f"{key}={own[key]}" for key in varied if key in own)
        entry.refresh()
        entry.seconds, entry.source = history.seconds(entry.config, entry.summary.get("steps") or 0)
    return entries


def work_order(entries: Sequence[Entry], workers: int = 1) -> list[Entry]:
    """What is left to do, in the order in which to do it.

    Several workers take long runs first, so that none is left alone with one at the end; runs of
    unknown length count as long and keep the sweep file's order.
    """
    left = [entry for entry in entries if entry.state != DONE]

    def key(entry: Entry) -> tuple:
        longest_first = 0.0
        if workers > 1:
            longest_first = -(float("inf") if entry.seconds is None else entry.seconds)
        return RANK[entry.state], longest_first

    return sorted(left, key=key)


def table(entries: Sequence[Entry], title: str) -> Table:
    """The plan, a row a run."""
    out = Table(title=title, title_justify="left")
    varied = any(entry.varied for entry in entries)
    for column in ("run", *(["with"] if varied else []), "state", "steps", "time left"):
        right = column in ("steps", "time left")
        out.add_column(column, justify="right" if right else "left", overflow="fold")
    for entry in entries:
        status = entry.summary.get("status")
        label = LABEL[entry.state] if entry.state != DONE else status
        if status == "diverged":
            label = f"diverged at step {entry.summary.get('diverged_at')}"
        steps = f"{entry.summary.get('steps') or 0}/{entry.config['steps']}"
        if entry.state == DONE:
            left = ""
        elif entry.seconds is None:
            left = "unknown"
        else:
            left = ("guess: " if entry.source == "guess" else "") + duration(entry.seconds)
        out.add_row(entry.name, *([entry.varied] if varied else []), label, steps, left)
    return out


def headline(entries: Sequence[Entry], workers: int) -> str:
    """The plan in one line: how many runs, how many of each kind, how long in all."""
    counts = Counter(entry.state for entry in entries)
    parts = [f"{counts[state]} {LABEL[state]}" for state in LABEL if counts[state]]
    line = f"{len(entries)} run{'s' if len(entries) != 1 else ''}: {', '.join(parts)}"
    left = work_order(entries, workers)
    if not left:
        return line
    known = [entry.seconds for entry in left if entry.seconds is not None]
    time = f"about {duration(makespan(known, workers))}" if known else "time unknown"
    if known and len(known) < len(left):
        time = f"at least {duration(makespan(known, workers))} ({len(left) - len(known)} unknown)"
    sources = sorted({entry.source for entry in left if entry.seconds is not None})
    source = f" ({', '.join(sources)})" if sources else ""
    return f"{line}; {time} on {workers} worker{'s' if workers != 1 else ''}{source}"
