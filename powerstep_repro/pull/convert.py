"""From W&B's answers to what a run directory holds."""

import json
import math
from dataclasses import dataclass
from typing import Any

import yaml

from powerstep_repro.errors import UserError
from powerstep_repro.pull.remote import RemoteRun
from powerstep_repro.runs.files import CONFIG, ENDED, METRICS, SUMMARY, WINDOWS

# W&B gives numbers that JSON lacks as these words.
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# The trainer's order; W&B keeps none.
_ORDER = ("step", "tokens", "train_loss", "lr", "grad_norm", "step_ms", "tokens_per_s", "val_loss")
_WHOLE = ("step", "tokens")
# Entries of the summary that say how an attempt ended.
_RESULTS = ("final_val_loss", "final_train_loss", "diverged_at", "blown_up_at", "error")
# Entries that the mirror adds for a pull, and that are no part of summary.json.
_MIRRORED = ("rows", "windows")


@dataclass(frozen=True)
class Outcome:
    """How a run stands.

    Args:
        status: As in ``summary.json``.
        closed: The run said so itself, so that its summary describes all of it. Else it still
            runs, was killed, or lost its connection: an earlier attempt may have left the summary.
        rows: How many rows there must be; None: nobody says.
    """

    status: str
    closed: bool
    rows: int | None


@dataclass(frozen=True)
class Pulled:
    """A run, ready to be written: its status, its number of rows and its files' contents."""

    status: str
    rows: int
    files: dict[str, bytes]


def outcome(remote: RemoteRun, last_step: int) -> Outcome:
    """Tell how a run stands from what W&B says and what the run said.

    Args:
        remote: The run.
        last_step: The last step that W&B has a row of; 0 without rows.
    """
    said = remote.summary.get("status")
    closed = said in (*ENDED, "failed", "interrupted") and (
        remote.state in ("finished", "failed")
        # Not seen to end, but nothing came after its last word.
        or (remote.state != "running" and last_step <= (remote.summary.get("steps") or 0))
    )
    if closed:
        rows = remote.summary.get("rows")
        return Outcome(said, True, remote.line_count if rows is None else rows)
    states = {"running": "running", "pending": "running", "failed": "failed"}
    return Outcome(states.get(remote.state, "interrupted"), False, remote.line_count)


def _number(value: Any) -> float | int | None:
    """A logged number, restored from W&B's words; None for anything else."""
    if isinstance(value, str):
        return _WORDS.get(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _row(raw: dict[str, Any]) -> dict[str, Any] | None:
    """W&B's row as it was logged; None if it is not one of a run's rows, which count steps."""
    found = {name: _number(value) for name, value in raw.items() if not name.startswith("_")}
    step = found.get("step")
    if step is None or step != step // 1:
        return None
    names = [name for name in _ORDER if name in found] + sorted(found.keys() - set(_ORDER))
    return {
        name: int(value) if name in _WHOLE and math.isfinite(value) else float(value)
        for name in names
        if (value := found[name]) is not None
    }


def _plain(value: Any) -> Any:
    """A value for summary.json, where non-finite numbers are null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return None if value in _WORDS else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _windows(mirrored: Any) -> bytes | None:
    if not isinstance(mirrored, dict) or not mirrored.get("losses"):
        return None
    # summary.json knows no NaN, so the mirror sent null.
    losses = [math.nan if loss is None else float(_number(loss)) for loss in mirrored["losses"]]
    return json.dumps({"step": mirrored.get("step"), "losses": losses}).encode()


def convert(remote: RemoteRun, history: list[dict[str, Any]]) -> Pulled:
    """Make a run's files from its history; ``metrics.parquet`` is made from them later.

    Args:
        remote: The run.
        history: All rows as W&B gives them; of doubled steps the last counts.

    Raises:
        UserError: Rows are missing.
    """
    rows = {row["step"]: row for row in map(_row, history) if row is not None}
    result = outcome(remote, max(rows, default=0))
    names = {name for row in rows.values() for name in row}
    summary = {
        name: _plain(value)
        for name, value in remote.summary.items()
        if not name.startswith("_") and name not in names and name not in _MIRRORED
    }
    windows = _windows(remote.summary.get("windows"))
    if result.closed:
        # Beyond its last word lie rows of an attempt that was given up for an earlier checkpoint.
        rows = {step: row for step, row in rows.items() if step <= (summary.get("steps") or 0)}
    else:
        summary = {name: value for name, value in summary.items() if name not in _RESULTS}
        summary["steps"] = max(rows, default=0)
        windows = None
    if result.closed and "rows" in remote.summary:
        _complete(len(rows), result.rows, "that the run logged")
    else:
        _complete(len(history), result.rows, "that it has received")
    summary |= {"status": result.status, "pulled_from": remote.path}
    files = {
        CONFIG: yaml.safe_dump(remote.config, sort_keys=False, allow_unicode=True).encode(),
        METRICS: b"".join(json.dumps(rows[step]).encode() + b"\n" for step in sorted(rows)),
        SUMMARY: json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n",
    }
    if windows is not None:
        files[WINDOWS] = windows
    return Pulled(result.status, len(rows), files)


def _complete(count: int, expected: int | None, which: str) -> None:
    if expected is not None and count < expected:
        raise UserError(f"W&B gave {count} of the {expected} rows {which}")
