"""Runs found again: a table of runs, and their histories, read as they are needed."""

import logging
import math
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from powerstep_repro.config.identity import lacking_keys, run_name
from powerstep_repro.config.validate import flatten
from powerstep_repro.runs.files import (
    CONFIG,
    ENDED,
    METRICS,
    PARQUET,
    SUMMARY,
    WINDOWS,
    read_json,
    read_log,
    read_mechanism,
    read_summary,
)

logger = logging.getLogger(__name__)

#: Log and summary are written from one number; a mirror may have rounded it.
LOSS_TOLERANCE = 1e-4

# Columns that the table of runs has even when no run gives them a value.
_TEXT_COLUMNS = (
    *("path", "profile", "model.name", "optimizer.name", "data.name", "data.hash", "status"),
    *("device", "git_revision"),
)
_NUMBER_COLUMNS = (
    *("lr", "seed", "steps", "batch", "context", "steps_done", "final_val_loss"),
    *("final_train_loss", "diverged_at", "blown_up_at", "n_params", "optimizer_state_bytes"),
    *("peak_memory_bytes", "wall_s"),
)
_NEEDED = ("profile", "model", "optimizer", "data", "lr", "seed", "steps")
# libyaml's reader where PyYAML has it: several times faster, the same result.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Loaded:
    """What was found under a folder.

    Attributes:
        runs: One row a run, indexed by the name that its config gives it, whatever its folder is
            called. Config values under their dotted keys (``model.name``, ``optimizer.beta``,
            ``lr``), NaN where an optimizer lacks a hyperparameter; the summary's fields under their
            own names, except its count of steps, ``steps_done`` (``steps`` is the config's), and
            its device's name, which stands in the place of the config's ``device``.
        configs: Each run's nested config.
        problems: One sentence for every directory that was left out or lacks something.
        left_out: Those directories that were left out.
    """

    runs: pd.DataFrame
    configs: dict[str, dict[str, Any]]
    problems: list[str] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)

    def problem(self, sentence: str) -> None:
        """Note what is wrong with a run's files, and warn of it, once."""
        if sentence not in self.problems:
            self.problems.append(sentence)
            logger.warning("%s", sentence)

    def history(self, run: str, columns: list[str] | None = None) -> pd.DataFrame:
        """Read one run's log: a row a logged step, in order.

        Args:
            run: The run's name.
            columns: Which columns to read, in this order; one that the run lacks is NaN. None:
                all there are.

        Returns:
            Columns ``step``, ``tokens``, ``train_loss``, ``lr``, ``grad_norm``, ``step_ms``,
            ``tokens_per_s``, ``val_loss`` (NaN where not evaluated) and others of the run.
        """
        return read_log(Path(self.runs.at[run, "path"]), columns)

    def mechanism(self, run: str) -> pd.DataFrame:
        """Return what was seen of a run's optimizer: see ``files.read_mechanism``."""
        return read_mechanism(Path(self.runs.at[run, "path"]))

    def windows(self, run: str) -> np.ndarray | None:
        """Return the last evaluation's loss per validation window, shape (windows,), or None."""
        path = Path(self.runs.at[run, "path"]) / WINDOWS
        losses = read_json(path).get("losses")
        if not losses and self.runs.at[run, "status"] == "finished":
            self.problem(f"{path} is missing or damaged: no interval over windows counts this run")
        return np.asarray(losses, dtype=np.float64) if losses else None


def load(root: str | Path) -> Loaded:
    """Find all runs under a folder.

    Live, killed and ended runs are all read. A directory is left out, and named in a warning, if
    its config, summary or log is damaged, if it has ended and its log's last row is not what the
    summary tells, or if another directory holds the same run: nobody can say which of the two
    counts.

    Args:
        root: ``<results_dir>/<profile>/runs`` or anything above it; a missing folder holds no
            runs.
    """
    loaded = Loaded(pd.DataFrame(), {})
    rows: dict[str, dict[str, Any]] = {}
    homes: dict[str, list[Path]] = defaultdict(list)  # of each run, by the name in its config
    for path in _run_dirs(Path(root)):
        try:
            config, summary = read_config(path / CONFIG), _checked_summary(path)
        except ValueError as error:
            loaded.left_out.append(path)
            loaded.problem(
                f"{path} is left out: {error} (restore its files, or move it away and train again)"
            )
            continue
        if lacking := lacking_keys(config):
            loaded.problem(
                f"{path} counts as no run of today's sweeps: its config lacks {', '.join(lacking)}"
            )
        name = run_name(config)
        homes[name].append(path)
        loaded.configs[name], rows[name] = config, _row(path, config, summary)
    for name, paths in homes.items():
        if len(paths) > 1:
            del rows[name], loaded.configs[name]
            loaded.left_out += paths
            loaded.problem(
                f"{' and '.join(map(str, paths))} hold the same run, as their configs say: all are "
                "left out until only one of them is there"
            )
    loaded.runs = pd.DataFrame.from_dict(rows, orient="index")
    for column in _TEXT_COLUMNS:
        if column not in loaded.runs:
            loaded.runs[column] = None
    for column in _NUMBER_COLUMNS:
        values = loaded.runs.get(column, pd.Series(index=loaded.runs.index, dtype="float64"))
        loaded.runs[column] = pd.to_numeric(values, errors="coerce")
    loaded.runs.index.name = "run"
    return loaded


def _run_dirs(root: Path) -> list[Path]:
    """The run directories under ``root``, itself included, hidden ones not, sorted."""
    found = []
    for folder, subfolders, files in os.walk(root, followlinks=True):
        if {CONFIG, METRICS, PARQUET, SUMMARY} & set(files):
            found.append(Path(folder))
            subfolders.clear()
        # Hidden: what a killed command was about to move into its place.
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
    return sorted(found)


def read_config(path: Path) -> dict[str, Any]:
    """Read a run's ``config.yaml``; raise ``ValueError`` where it is missing or no run's."""
    try:
        config = yaml.load(path.read_bytes(), Loader=_LOADER)
    except OSError:
        raise ValueError(f"no {CONFIG}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ValueError(f"{CONFIG} is not valid YAML") from None
    check_config(config)
    return config | {"lr": float(config["lr"])}  # YAML takes a hand-written 6e-4 for a string


def check_config(config: Any) -> None:
    """Refuse a config that is not a run's, with a ``ValueError`` that says what it lacks."""
    missing = [key for key in _NEEDED if not isinstance(config, dict) or key not in config]
    if missing:
        raise ValueError(f"{CONFIG} lacks {', '.join(missing)}")
    for section in ("model", "optimizer", "data"):
        if not isinstance(config[section], dict) or "name" not in config[section]:
            raise ValueError(f"{CONFIG} has no {section}.name")
    for key, kind in {"lr": float, "seed": int, "steps": int}.items():
        try:
            kind(config[key])
        except (TypeError, ValueError):
            raise ValueError(f"{CONFIG} has {key} = {config[key]!r}, which is no number") from None


def _checked_summary(path: Path) -> dict[str, Any]:
    """Read a run's summary; raise ``ValueError`` unless its log ends as the summary tells."""
    summary = read_summary(path)
    if not summary:
        raise ValueError(f"{SUMMARY} is missing or damaged")
    log = read_log(path, ["step", "val_loss"])
    if summary["status"] not in ENDED:
        return summary
    last, told = (log["step"].iloc[-1] if len(log) else 0), summary.get("steps") or 0
    # A run that diverged logs the step that it could not take.
    if not last or last not in (told, summary.get("diverged_at")):
        raise ValueError(f"its log ends at step {last:,}, its summary tells of {told:,}")
    if summary["status"] == "finished":
        final, logged = summary.get("final_val_loss"), log["val_loss"].iloc[-1]
        if final is None:
            raise ValueError("it has finished, but its summary holds no final validation loss")
        if math.isfinite(logged) and abs(logged - final) > LOSS_TOLERANCE:
            raise ValueError(
                f"its log ends with a validation loss of {logged:.4f}, its summary tells of "
                f"{final:.4f}"
            )
    return summary


def _row(path: Path, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    told = dict(flatten(summary))
    row = dict(flatten(config)) | {"path": str(path), "device": told.get("device")}
    row["steps_done"] = told.pop("steps", None)
    return told | row  # what was measured takes no setting's place
