"""Run directories, put in their place whole."""

import os
import shutil
import tempfile
from pathlib import Path

from powerstep_repro.pull.convert import Pulled
from powerstep_repro.runs.files import (
    CONFIG,
    ENDED,
    ERROR,
    METRICS,
    PARQUET,
    SUMMARY,
    WINDOWS,
    read_log,
    write_parquet,
    write_whole,
)

# What a pull replaces in a directory. All else there, checkpoints above all, stays.
_REPLACED = {CONFIG, METRICS, PARQUET, SUMMARY, WINDOWS, ERROR}


def rows_in(run_dir: Path) -> int | None:
    """Count the logged steps of a run directory; None if there is no such directory."""
    if not run_dir.is_dir():
        return None
    try:
        return len(read_log(run_dir, ["step"]))
    except ValueError:  # damaged: whatever W&B holds is better
        return 0


def put(run_dir: Path, pulled: Pulled) -> None:
    """Write a run's directory elsewhere, then rename it into its place.

    Args:
        run_dir: Where it belongs; one that is there is replaced, its checkpoints kept.
        pulled: What it holds.
    """
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    # On the same file system, and not where runs are looked for.
    beside = run_dir.parent.resolve().parent
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=beside) as scratch:
        new, old = Path(scratch, "new"), Path(scratch, "old")
        new.mkdir()
        for name, content in pulled.files.items():
            write_whole(new / name, content)
        if pulled.status in ENDED:
            write_parquet(new)
        if not run_dir.exists():
            os.rename(new, run_dir)
            return
        _link(run_dir, new)
        os.rename(run_dir, old)
        try:
            os.rename(new, run_dir)
        except OSError:
            os.rename(old, run_dir)
            raise


def _link(run_dir: Path, new: Path) -> None:
    """Give the new directory what the old one holds besides a pull's files, without copying it."""

    def others(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name in _REPLACED and Path(folder) == run_dir]

    shutil.copytree(
        run_dir, new, ignore=others, copy_function=_link_or_copy, dirs_exist_ok=True, symlinks=True
    )


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
