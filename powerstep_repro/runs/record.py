"""What a run writes while it trains: a log of one history, a summary, the last evaluation.

Local files are the truth. Each is replaced whole or appended a line at a time, so that whatever
kills the process leaves a directory that reads well and resumes.
"""

import fcntl
import json
import logging
import math
import os
import socket
import time
import traceback
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import yaml

from powerstep_repro.config.identity import canonical, differing_keys, identity_view
from powerstep_repro.errors import UserError
from powerstep_repro.runs.files import (
    CONFIG,
    ENDED,
    ERROR,
    LOCK,
    MECHANISM,
    MECHANISM_LOG,
    METRICS,
    PARQUET,
    SUMMARY,
    WINDOWS,
    read_json,
    read_rows,
    read_summary,
    write_mechanism,
    write_parquet,
    write_whole,
)
from powerstep_repro.runs.load import read_config

logger = logging.getLogger(__name__)

# Another process may look at the lock for a moment, or be on its way out.
_LOCK_PATIENCE_S = 2.0
# How old the summary's step count and wall-clock time may be in a run that was killed.
_SUMMARY_INTERVAL_S = 10.0


def is_locked(run_dir: str | Path) -> bool:
    """Whether a process is writing to the run directory now."""
    try:
        descriptor = os.open(Path(run_dir) / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, how: int) -> bool:
    """Whether nobody else holds the lock; that is not known, and said, where there are no locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _say_unlocked(str(error))
    return True


@lru_cache(maxsize=1)
def _say_unlocked(reason: str) -> None:
    """Warn once a process."""
    logger.warning(
        "the file system of the runs has no locks (%s): nothing keeps two processes from writing "
        "one run",
        reason,
    )


def blown_up_at(log: pd.DataFrame, vocab_size: int, warmup_steps: int) -> int | None:
    """Return the step at which a run blew up while its losses stayed finite, or None.

    The rule: the first logged step after the warm-up whose training or validation loss exceeds
    ln(vocabulary) + 1. A uniform guess has a loss of ln(vocabulary), about where training starts;
    a nat above it the model does worse than knowing nothing.

    Args:
        log: A run's rows, with ``step``, ``train_loss`` and perhaps ``val_loss``.
        vocab_size: Of the model.
        warmup_steps: Of the schedule.
    """
    losses = log.reindex(columns=["train_loss", "val_loss"]).astype(float)
    above = (losses > math.log(vocab_size) + 1.0) & (losses < math.inf)
    steps = log["step"][above.any(axis=1) & (log["step"] > warmup_steps)]
    return int(steps.iloc[0]) if len(steps) else None


def _finite(value: Any) -> Any:
    """``value`` for summary.json: plain types, non-finite numbers as null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class Recorder:
    """Writes a run directory; holds its lock as a context manager.

    Entering marks the run ``running`` and removes what a previous, unfinished attempt left to be
    decided anew. Leaving by an exception marks it ``failed`` and saves the traceback; otherwise
    the status stays what :meth:`finish` made it.

    Args:
        run_dir: The run's directory; made if missing.
        config: The resolved config, with the data set's name and hash.
        mirror: Gets every row and the final summary besides (see ``wandb_mirror``).

    Attributes:
        previous: The summary that was there before, e.g. of an interrupted attempt.
    """

    def __init__(self, run_dir: str | Path, config: dict[str, Any], mirror: Any = None):
        self.run_dir = Path(run_dir)
        self.config = config
        self.mirror = mirror
        self.previous: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._lock: int | None = None
        self._log: int | None = None
        self._began = 0.0
        self._summarised = 0.0
        self._interval = config["log_interval"]

    def __enter__(self) -> "Recorder":
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self.previous = read_summary(self.run_dir)
            self._check_config()
            self._began = time.monotonic()
            self._summary = {
                "started": self.previous.get("started") or _now(),
                "starts": (self.previous.get("starts") or 0) + 1,
            }
            self.summary(
                status="running",
                steps=self.previous.get("steps") or 0,
                pid=os.getpid(),
                host=socket.gethostname(),
            )
            # An earlier error no longer holds; a kill may have left a file half-written.
            for path in (self.run_dir / ERROR, *self.run_dir.glob("*.tmp")):
                path.unlink(missing_ok=True)
            # After the summary: a run that had ended with a damaged config must not look whole.
            text = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
            write_whole(self.run_dir / CONFIG, text.encode())
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                self.finish("interrupted")
            elif error is not None:
                self._check_place()
                text = "".join(traceback.format_exception(kind, error, trace))
                write_whole(self.run_dir / ERROR, text.encode())
                self.finish("failed", error=f"{kind.__name__}: {error}")
        except (OSError, ValueError):
            pass  # a full disk, say: the first error is the one that goes on to the caller
        finally:
            self._release()

    def _take_lock(self) -> None:
        self._lock = os.open(self.run_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        give_up = time.monotonic() + _LOCK_PATIENCE_S
        while not _flock(self._lock, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                holder = os.read(self._lock, 200).decode(errors="replace").strip()
                self._release()
                raise UserError(
                    f"{self.run_dir} is being written by {holder or 'another process'}: "
                    "wait for it to end, or stop it first"
                )
            time.sleep(0.05)
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def _release(self) -> None:
        for descriptor in (self._log, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._log = self._lock = None

    def _check_config(self) -> None:
        try:
            there = read_config(self.run_dir / CONFIG)
        except ValueError:  # missing or damaged: written anew
            return
        old, new = identity_view(there), identity_view(self.config)
        if canonical(old) != canonical(new):
            differ = ", ".join(differing_keys(old, new))
            raise UserError(
                f"{self.run_dir} holds another run, which differs in {differ}: move it away, or "
                "choose another results_dir"
            )
        # No part of a run's identity: the rows that are there may be further apart than new ones.
        self._interval = max(self._interval, there.get("log_interval") or 0)

    def _check_place(self) -> None:
        """Refuse to go on where nobody would find what is written: the folder was taken away."""
        open_file, name = (self._lock, LOCK) if self._log is None else (self._log, METRICS)
        try:
            if os.path.samestat(os.fstat(open_file), os.stat(self.run_dir / name)):
                return
        except FileNotFoundError:
            pass
        raise OSError(f"{self.run_dir / name} was removed or replaced while the run wrote to it")

    def resume(self, step: int) -> None:
        """Make the log one history that ends at ``step``: what lies beyond it goes.

        Args:
            step: The checkpoint's step, counted from 1; 0 starts anew.

        Raises:
            UserError: The log ends before ``step``, or is damaged; nothing was changed.
        """
        if self._log is not None:
            os.close(self._log)
            self._log = None
        path = self.run_dir / METRICS
        try:
            kept, looks = (
                [row for row in read_rows(self.run_dir, name) if row["step"] <= step]
                if step
                else []
                for name in (METRICS, MECHANISM_LOG)
            )
        except ValueError as error:
            raise UserError(f"{self.run_dir}: {error}: restore the file") from None
        last = kept[-1]["step"] if kept else -self._interval
        if step and step - last >= self._interval:
            raise UserError(
                f"{path} ends at step {max(last, 0)}, but the run would go on from its checkpoint "
                f"of step {step}: restore the file, or delete the checkpoints after step "
                f"{max(last, 0)} in {self.run_dir / 'checkpoints'} to train from there again"
            )
        # An earlier end no longer holds.
        for ended in (PARQUET, MECHANISM):
            (self.run_dir / ended).unlink(missing_ok=True)
        write_whole(path, b"".join(_line(row) for row in kept))
        if (self.run_dir / MECHANISM_LOG).exists():
            write_whole(self.run_dir / MECHANISM_LOG, b"".join(map(_line, looks)))
        if step == 0:
            (self.run_dir / WINDOWS).unlink(missing_ok=True)
        self._summary["steps"] = step

    def log(self, row: dict[str, Any]) -> None:
        """Append a row, flushed; non-finite numbers as bare NaN and Infinity.

        Args:
            row: ``step`` (counted from 1, after the update) and what was measured there.
        """
        if self._log is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._log = os.open(self.run_dir / METRICS, flags, 0o644)
        line = _line(row)
        while line:  # a full disk or a signal may take a part only
            line = line[os.write(self._log, line) :]
        self._summary["steps"] = row["step"]
        if time.monotonic() - self._summarised > _SUMMARY_INTERVAL_S:
            self.summary()
        if self.mirror is not None:
            self.mirror.log(row)

    def mechanism(self, rows: list[dict[str, Any]]) -> None:
        """Append the rows of a step that was looked at, of which :meth:`resume` cuts as of others.

        Args:
            rows: Each with ``step`` and ``kind``.
        """
        with open(self.run_dir / MECHANISM_LOG, "ab") as file:
            file.write(b"".join(map(_line, rows)))

    def windows(self, step: int, losses: list[float]) -> None:
        """Record the latest evaluation's loss per validation window, for comparison in pairs."""
        content = json.dumps({"step": step, "losses": list(losses)})
        write_whole(self.run_dir / WINDOWS, content.encode())

    def summary(self, **fields: Any) -> None:
        """Merge fields into ``summary.json``, in one step.

        ``wall_s`` is kept here: the seconds of this attempt added to those of earlier ones.

        Raises:
            OSError: The disk is full, or the run's directory is there no more.
        """
        self._check_place()
        self._summarised = time.monotonic()
        before = self.previous.get("wall_s") or 0.0
        self._summary["wall_s"] = round(before + self._summarised - self._began, 3)
        self._summary["updated"] = _now()
        self._summary |= fields
        text = json.dumps(_finite(self._summary), indent=2, allow_nan=False)
        write_whole(self.run_dir / SUMMARY, text.encode() + b"\n")

    def finish(self, status: str, **fields: Any) -> None:
        """Set the run's status, and write the Parquet log if it has ended.

        Args:
            status: finished, diverged, failed or interrupted.
            fields: Further fields of the summary.
        """
        rows = 0
        if status in ENDED:
            self._check_place()
            log = write_parquet(self.run_dir)
            write_mechanism(self.run_dir)
            rows = len(log)
            fields["blown_up_at"] = blown_up_at(
                log, self.config["model"]["vocab_size"], self.config["warmup_steps"]
            )
        elif self.mirror is not None:
            rows = len(read_rows(self.run_dir))
        # Last, so that a status of finished means that everything is there.
        self.summary(status=status, **fields)
        if self.mirror is not None:
            # What a pull checks the history against, and what it could not bring back otherwise.
            more = {"rows": rows, "windows": read_json(self.run_dir / WINDOWS)}
            self.mirror.finish(status, _finite(self._summary | more))
