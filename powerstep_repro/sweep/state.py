"""What a run directory says about its run, read while the run may still be writing to it."""

import contextlib
import json
from pathlib import Path

from powerstep_repro.runs import is_locked
from powerstep_repro.runs.files import ENDED, METRICS, SUMMARY, read_json

# What a sweep does with a run, by what is found on disk.
NEW, RESUME, RETRY, DONE, BUSY = "new", "resume", "retry", "done", "busy"

TAIL_BYTES = 8192  # holds several rows of metrics.jsonl


def classify(run_dir: Path) -> tuple[str, dict]:
    """The run's state, one of NEW, RESUME, RETRY, DONE, BUSY, and its summary.

    Finished and diverged runs are DONE: both are results. A run that says "running" while nobody
    holds its lock was killed, and resumes like an interrupted one.
    """
    summary = read_json(run_dir / SUMMARY)
    status = summary.get("status")
    if status in ENDED:
        return DONE, summary
    if is_locked(run_dir):
        return BUSY, summary
    if status == "failed":
        return RETRY, summary
    return (RESUME if status in ("running", "interrupted") else NEW), summary


def last_row(run_dir: Path) -> dict:
    """The newest whole row of ``metrics.jsonl``, read from the file's end; empty without one."""
    try:
        with open(run_dir / METRICS, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return {}
    for line in reversed(lines):
        if line.endswith(b"\n"):  # a line without its end is still being written
            with contextlib.suppress(ValueError):
                return json.loads(line)
    return {}


def last_line(path: Path) -> str:
    """The last line with text of a log, where a command leaves its one-sentence error."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
