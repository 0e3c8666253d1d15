"""The files of a run directory: each written whole, and readable while it is being written."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
PARQUET = "metrics.parquet"
SUMMARY = "summary.json"
WINDOWS = "windows.json"
ERROR = "error.txt"
LOCK = ".lock"
ENDED = ("finished", "diverged")
STATES = ("running", *ENDED, "failed", "interrupted")

_WHOLE = ("step", "tokens")
# What a summary counts or measures, as far as anything reckons with it or prints it.
_SUMMARY_NUMBERS = frozenset(
    {
        *("steps", "starts", "wall_s", "final_val_loss", "final_train_loss", "diverged_at"),
        *("blown_up_at", "n_params", "optimizer_state_bytes", "peak_memory_bytes", "world_size"),
    }
)
_SUMMARY_TEXTS = frozenset({"device", "git_revision", "updated"})


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step: readers see the old content or the new, never a part."""
    # The writer's id keeps two processes from sharing a temporary name.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty where the file is missing, cut, or holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Read a run's summary: empty if damaged, without fields that are not of their type."""
    return {
        key: value
        for key, value in read_json(run_dir / SUMMARY).items()
        if not (key in _SUMMARY_NUMBERS and not _is_number(value))
        and not (key in _SUMMARY_TEXTS and not isinstance(value, str))
        and not (key == "status" and value not in STATES)
    }


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**63  # neither NaN nor infinite


def jsonl_rows(path: Path) -> tuple[dict[int, bytes], int]:
    """Read a metrics log as one history.

    Args:
        path: A ``metrics.jsonl``, perhaps being written, cut in its last line, or holding rows
            twice after a resume.

    Returns:
        ``{step: line}`` in the order of steps, of doubled rows the last; and how many lines were
        no rows of numbers, the last one not counted if it is merely cut.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return {}, 0
    rows: dict[int, bytes] = {}
    bad = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if _is_row(row):
            rows[row["step"]] = line
        elif number < len(lines):
            bad += 1
    return dict(sorted(rows.items())), bad


def _is_row(value: Any) -> bool:
    """Whether a line of a log holds what we write there: numbers by name, a whole step first."""
    if not isinstance(value, dict) or type(value.get("step")) is not int:
        return False
    return all(
        item is None
        or (type(item) is int and abs(item) < 2**63)
        or (type(item) is float and name not in _WHOLE)
        for name, item in value.items()
    )


def frame_of_rows(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table: step and tokens whole numbers, everything else float.

    A value that a row lacks and a logged NaN both read as NaN; infinities stay.
    """
    frame = pd.DataFrame(list(rows))
    if frame.empty:
        frame = pd.DataFrame(columns=list(_WHOLE))
    for column in frame.columns:
        if column in _WHOLE and not frame[column].isna().any():
            frame[column] = frame[column].astype("int64")
        else:
            frame[column] = pd.to_numeric(frame[column], errors="coerce").astype("float64")
    return frame


def read_jsonl(path: Path) -> tuple[pd.DataFrame, int]:
    """Read a metrics log to a table, a row a step; and the count of lines that were no rows."""
    frame = _read_sound_jsonl(path)
    if frame is not None:
        return frame, 0
    rows, bad = jsonl_rows(path)
    return frame_of_rows(json.loads(line) for line in rows.values()), bad


def _read_sound_jsonl(path: Path) -> pd.DataFrame | None:
    """Read a log of full rows in the order of steps in one go; None if it is not such a log."""
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
        rows = json.loads(b"[%b]" % b",".join(lines))
    except (OSError, ValueError):
        return None
    if len(rows) != len(lines) or not all(type(row) is dict for row in rows):
        return None
    frame = pd.DataFrame(rows)
    kinds = {name: dtype.kind for name, dtype in frame.dtypes.items()}
    if not set(_WHOLE) <= kinds.keys() or any(kinds[name] != "i" for name in _WHOLE):
        return None
    if not set(kinds.values()) <= {"i", "f"}:
        return None
    if not (np.diff(frame["step"]) > 0).all():
        return None
    return frame.astype({name: "float64" for name in kinds if name not in _WHOLE})


def read_parquet(path: Path, columns: list[str] | None = None) -> pd.DataFrame:
    """Read a Parquet log, each step once and in order; columns that it lacks are left out.

    Raises:
        OSError, pyarrow.ArrowInvalid: The file is missing or damaged, or is no log of numbers.
    """
    with pq.ParquetFile(path) as file:
        there = file.schema_arrow.names
        wanted = there if columns is None else [name for name in columns if name in there]
        frame = file.read(columns=list({"step", *wanted} & {*there})).to_pandas()
    if "step" not in frame or not pd.api.types.is_integer_dtype(frame["step"]):
        raise pa.ArrowInvalid("no column of whole steps")
    try:
        for name in frame.select_dtypes(exclude="number"):
            frame[name] = pd.to_numeric(frame[name]).astype("float64")
    except (TypeError, ValueError):
        raise pa.ArrowInvalid(f"column {name} holds what is no number") from None
    if not (np.diff(frame["step"]) > 0).all():
        frame = frame.drop_duplicates("step", keep="last").sort_values("step", ignore_index=True)
    return frame[wanted]


def write_parquet(run_dir: Path) -> None:
    """Write ``metrics.parquet`` beside the jsonl. What a row lacks is null, a logged NaN is NaN."""
    rows, _ = jsonl_rows(run_dir / METRICS)
    parsed = [json.loads(line) for line in rows.values()]
    names = list(dict.fromkeys(name for row in parsed for name in row)) or list(_WHOLE)
    table = pa.table(
        {
            name: pa.array(
                [row.get(name) for row in parsed],
                pa.int64() if name in _WHOLE else pa.float64(),
                from_pandas=False,
            )
            for name in names
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_whole(run_dir / PARQUET, sink.getvalue().to_pybytes())
