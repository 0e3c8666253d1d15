"""The files of a run directory: each written whole, and readable while it is being written."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
PARQUET = "metrics.parquet"
SUMMARY = "summary.json"
WINDOWS = "windows.json"
MECHANISM_LOG = "mechanism.jsonl"
MECHANISM = "mechanism.parquet"
ERROR = "error.txt"
LOCK = ".lock"
ENDED = ("finished", "diverged")
STATES = ("running", *ENDED, "failed", "interrupted")

_WHOLE = ("step", "tokens")


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
    """Read a run's summary; empty where it is missing, cut, or tells of no state."""
    summary = read_json(run_dir / SUMMARY)
    return summary if summary.get("status") in STATES else {}


def read_rows(run_dir: Path, name: str = METRICS) -> list[dict[str, Any]]:
    """Read the rows of a log, ``metrics.jsonl`` or another, in order; none where there is no file.

    A last line that is cut is still being written, or was when the run was killed: it is dropped.

    Raises:
        ValueError: Another line is no row.
    """
    try:
        lines = (run_dir / name).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        rows = [None]
    if not all(isinstance(row, dict) and "step" in row for row in rows):
        raise ValueError(f"{name} has a line that is no row")
    return rows


def read_log(run_dir: Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a run's log, from Parquet if it has ended, else from the jsonl.

    Args:
        run_dir: The run's directory.
        columns: Which to read, in this order; one that the log lacks is NaN. None: all there are.

    Returns:
        A row a logged step, in order: ``step`` and ``tokens`` whole numbers, the others float. What
        a row lacks and a logged NaN both read as NaN; infinities stay.

    Raises:
        ValueError: The log is damaged.
    """
    path = run_dir / PARQUET
    if path.is_file():
        try:
            with pq.ParquetFile(path) as file:
                there = set(file.schema_arrow.names)
                wanted = None if columns is None else [name for name in columns if name in there]
                frame = file.read(columns=wanted).to_pandas()
        except (OSError, pa.ArrowException):
            raise ValueError(f"{PARQUET} cannot be read") from None
    else:
        frame = _frame(read_rows(run_dir))
    return _typed(frame if columns is None else frame.reindex(columns=list(columns)))


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["step", "tokens", "train_loss"])


def _typed(log: pd.DataFrame) -> pd.DataFrame:
    whole = [name for name in _WHOLE if name in log and not log[name].isna().any()]
    try:
        return log.astype({n: "int64" if n in whole else "float64" for n in log.columns})
    except (TypeError, ValueError):
        raise ValueError("its log holds what is no number") from None


def write_parquet(run_dir: Path) -> pd.DataFrame:
    """Write ``metrics.parquet`` from the jsonl that stands beside it; returns what it holds."""
    log = _typed(_frame(read_rows(run_dir)))
    _write_table(run_dir / PARQUET, log)
    return log


def _write_table(path: Path, frame: pd.DataFrame) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), sink, compression="zstd")
    write_whole(path, sink.getvalue().to_pybytes())


def read_mechanism(run_dir: Path) -> pd.DataFrame:
    """Read what was seen of a run's optimizer, a row a kind of parameter and step looked at.

    Returns:
        ``step``, ``kind`` and the numbers that ``powerstep_repro.optim.mechanism`` names, NaN where
        there is none; empty for a run that was not looked at.
    """
    if (run_dir / MECHANISM).is_file():
        return pd.read_parquet(run_dir / MECHANISM)
    frame = pd.DataFrame(read_rows(run_dir, MECHANISM_LOG))
    return frame.astype({name: float for name in frame.columns if name not in ("step", "kind")})


def write_mechanism(run_dir: Path) -> None:
    """Write ``mechanism.parquet`` from the jsonl beside it, if there is one."""
    (run_dir / MECHANISM).unlink(missing_ok=True)
    if len(looks := read_mechanism(run_dir)):
        _write_table(run_dir / MECHANISM, looks)
