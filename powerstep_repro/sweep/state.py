"""What a run directory says about its run, read while the run may still be writing to it."""

import contextlib
import json
from pathlib import Path

from powerstep_repro.runs import is_locked
from powerstep_repro.runs.files import ENDED, METRICS, read_summary
from powerstep_repro.runs.record import stated_config

# What a sweep does with a run, by what is found on disk.
NEW, RESUME, RETRY, DONE, BUSY = "new", "resume", "retry", "done", "busy"
DAMAGED = "damaged"

HEADER = "--- "  # begins the line that a sweep writes into a run's log before each attempt
TAIL_BYTES = 65536


def _tail(path: Path) -> list[bytes]:
    """The last lines of a file with their ends, the first one perhaps cut; none without a file."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().splitlines(keepends=True)
    except OSError:
        return []


def classify(run_dir: Path) -> tuple[str, dict]:
    """The run's state, one of NEW, RESUME, RETRY, DONE, BUSY, DAMAGED, and its summary.

    Finished and diverged runs are DONE: both are results. A run that says "running" while nobody
    holds its lock was killed, and resumes like an interrupted one.
    One that has ended is DAMAGED without its config: nothing that reads runs finds it.
    Until a run has ended its steps are the log's: the summary is written every few seconds only.
    """
    summary = read_summary(run_dir)
    status = summary.get("status")
    if status in ENDED and stated_config(run_dir) is None:
        return DAMAGED, {}
    if status in ENDED:
        return DONE, summary
    if type(step := last_row(run_dir).get("step")) is int:
        summary = summary | {"steps": step}
    if is_locked(run_dir):
        return BUSY, summary
    if status == "failed":
        return RETRY, summary
    return (RESUME if status in ("running", "interrupted") else NEW), summary


def last_row(run_dir: Path) -> dict:
    """The newest whole row of ``metrics.jsonl``, read from the file's end; empty without one."""
    for line in reversed(_tail(run_dir / METRICS)):
        if line.endswith(b"\n"):  # a line without its end is still being written
            with contextlib.suppress(ValueError):
                return json.loads(line)
    return {}


def last_words(log: Path) -> str:
    """What the last attempt in a run's log said before it ended; empty if nothing.

    That is its last one-sentence error (torchrun adds pages of its own after it), else the last
    line with text.
    """
    words = ""
    for line in reversed(_tail(log)):
        text = line.decode(errors="replace").strip()
        if text.startswith(HEADER):
            break
        if text.startswith("error: "):
            return text
        words = words or text
    return words
