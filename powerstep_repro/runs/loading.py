"""Runs found again: a table of runs, and their histories, read as they are needed."""

import logging
import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml

from powerstep_repro.config.identity import canonical, matching_view, run_id
from powerstep_repro.config.validate import flatten
from powerstep_repro.runs.checks import (
    LEAST_STATE_BYTES,
    contradiction,
    fingerprint,
    first_hole,
    groups_of_several,
)
from powerstep_repro.runs.files import (
    CONFIG,
    METRICS,
    PARQUET,
    SUMMARY,
    WINDOWS,
    read_json,
    read_jsonl,
    read_parquet,
    read_summary,
)

logger = logging.getLogger(__name__)

#: In the place of ``finished``, for a run whose final validation loss is missing or cannot be.
DAMAGED = "damaged"

# Columns that the table of runs has even when no run gives them a value.
_TEXT_COLUMNS = (
    "path",
    "profile",
    "model.name",
    "optimizer.name",
    "data.name",
    "data.hash",
    "status",
    "device",
    "git_revision",
)
_NUMBER_COLUMNS = (
    "lr",
    "seed",
    "steps",
    "batch",
    "context",
    "steps_done",
    "final_val_loss",
    "final_train_loss",
    "diverged_at",
    "blown_up_at",
    "n_params",
    "optimizer_state_bytes",
    "peak_memory_bytes",
    "wall_s",
)
_NEEDED = ("profile", "model", "optimizer", "data", "lr", "seed", "steps")
# Of the keys below: what is not there before the data set is known, or in configs by hand.
_MAY_LACK = ("data.hash", "batch", "context")
# Whoever works with these relies on their type.
_TYPES = {
    "whole number": (int, ("seed", "steps", "batch", "context")),
    "number": (int | float | str, ("lr",)),  # YAML takes a hand-written 6e-4 for a string
    "text": (str, ("profile", "model.name", "optimizer.name", "data.name", "data.hash")),
}
# libyaml's reader where PyYAML has it: several times faster, the same result.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Loaded:
    """What was found under a folder.

    Attributes:
        runs: One row a run, indexed by the run's directory name. Config values under their dotted
            keys (``model.name``, ``optimizer.beta``, ``lr``), NaN where an optimizer lacks a
            hyperparameter; the summary's fields under their own names, except its count of steps,
            ``steps_done`` (``steps`` is the config's), and its device's name, which stands in the
            place of the config's ``device``.
        configs: Each run's nested config.
        problems: One sentence for every directory that was skipped or only partly readable; more
            are found as histories are read.
        damaged: Names of the directories that were skipped because their config is no run's.
    """

    runs: pd.DataFrame
    configs: dict[str, dict[str, Any]]
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    _finals: dict[str, float] = field(default_factory=dict, repr=False)

    def _path(self, run: str) -> Path:
        return Path(self.runs.at[run, "path"])

    def problem(self, sentence: str) -> None:
        """Note what is wrong with a run's files, and warn of it, once."""
        if sentence not in self.problems:
            self.problems.append(sentence)
            logger.warning("%s", sentence)

    def history(self, run: str, columns: list[str] | None = None) -> pd.DataFrame:
        """Read one run's log: a row a logged step, in order, each step once.

        Args:
            run: The run's directory name.
            columns: Which columns to read, in this order; one that the run lacks is NaN. None:
                all there are.

        Returns:
            Columns ``step``, ``tokens``, ``train_loss``, ``lr``, ``grad_norm``, ``step_ms``,
            ``tokens_per_s``, ``val_loss`` (NaN where not evaluated) and others of the run.
        """
        path = self._path(run)
        frame = None
        if (path / PARQUET).is_file():
            try:
                frame = read_parquet(path / PARQUET, columns)
            except (OSError, pa.ArrowException) as error:
                reason = str(error).partition("\n")[0]
                self.problem(f"{path / PARQUET} cannot be read ({reason}): the jsonl is used")
        if frame is None:
            frame, bad = read_jsonl(path / METRICS)
            if bad:
                self.problem(f"{path / METRICS} has {bad} lines that are no rows: left out")
            if not len(frame):
                self.problem(f"{path / METRICS} is missing or holds no row: nothing is drawn of it")
        if columns is not None:
            frame = frame.reindex(columns=columns)
        if "step" in frame:
            hole = first_hole(frame["step"].to_numpy(), self.configs[run].get("log_interval"))
            if hole:
                self.problem(
                    f"{run}: its log has no row between the steps {hole[0]:,} and {hole[1]:,}: a "
                    "curve ends there"
                )
        return frame

    def final_loss(self, run: str) -> float:
        """Return a finished run's validation loss at its end; NaN for another run.

        It is NaN, too, and a problem, where the summary has none, one that cannot be, or another
        than the log.
        """
        facts = self.runs.loc[run]
        if facts["status"] != "finished":
            return math.nan
        if run not in self._finals:
            told = float(facts["final_val_loss"])
            log = self.history(run, columns=["step", "val_loss"])
            wrong = contradiction(told, log, float(facts["steps_done"]))
            if wrong:
                self.problem(f"{run}: {wrong}: it counts as damaged, without a final loss")
            self._finals[run] = math.nan if wrong else told
        return self._finals[run]

    def state(self, run: str) -> str | None:
        """Return how a run ended: its status, or ``DAMAGED``; None if nothing tells."""
        status = self.runs.at[run, "status"]
        if status == "finished" and math.isnan(self.final_loss(run)):
            return DAMAGED
        return status if isinstance(status, str) else None

    def _renamed(self, run: str) -> bool:
        """Whether a run's name does not hold its config's hash, as that of a changed copy."""
        return not run.endswith(run_id(self.configs[run]))

    @cached_property
    def copies(self) -> dict[str, str]:
        """Runs that are no replicates, by name, each with the run that it repeats.

        Two seeds differ in weights and batches, so that equal losses in every row are one run
        twice. Of equals one named by its config's hash counts, then that of the lowest seed.
        """
        settings = {
            run: canonical([matching_view(config), config["data"].get("hash")])
            for run, config in self.configs.items()
        }
        found = {}
        for names in groups_of_several(settings):
            logs = {run: self.history(run, columns=["step", "train_loss"]) for run in names}
            prints = {run: print_ for run in names if (print_ := fingerprint(logs[run]))}
            for same in groups_of_several(prints):
                seeds = {run: self.configs[run]["seed"] for run in same}
                first = min(same, key=lambda run: (self._renamed(run), seeds[run], run))
                for run in same:
                    if run != first:
                        found[run] = first
                        self.problem(
                            f"{run} (seed {seeds[run]}) has the training losses of {first} (seed "
                            f"{seeds[first]}) in every row: one run, counted once"
                        )
        return found

    def windows(self, run: str) -> np.ndarray | None:
        """Return the last evaluation's loss per validation window, shape (windows,), or None."""
        path = self._path(run) / WINDOWS
        if not path.is_file() and self.runs.at[run, "status"] == "finished":
            self.problem(f"{path} is missing: no interval over windows counts this run")
        losses = read_json(path).get("losses")
        try:
            values = None if losses is None else np.asarray(losses, dtype=np.float64)
        except (OverflowError, TypeError, ValueError):
            values = np.empty(0)
        if values is not None and (values.ndim != 1 or not len(values)):
            self.problem(f"{path} holds no list of losses: it is left out")
            return None
        return values

    @cached_property
    def steps(self) -> pd.DataFrame:
        """All histories in one table, with a column ``run``; built on first use.

        Millions of rows for long runs: ``history`` with the columns needed is the lean way.
        """
        frames = {run: self.history(run) for run in self.runs.index}
        frames = {run: frame for run, frame in frames.items() if len(frame)}
        if not frames:
            return pd.DataFrame(columns=["run", "step", "tokens", "train_loss", "val_loss"])
        joined = pd.concat(frames.values(), ignore_index=True)
        counts = [len(frame) for frame in frames.values()]
        codes = np.repeat(np.arange(len(frames)), counts)
        joined.insert(0, "run", pd.Categorical.from_codes(codes, categories=list(frames)))
        return joined


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
        check_config(config)
        rate = float(config["lr"])
        canonical(config)
    except OSError:
        raise ValueError(f"no {CONFIG}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise ValueError(f"{CONFIG} is not valid YAML") from None
    except (OverflowError, RecursionError, TypeError) as error:  # a date, a list within itself
        raise ValueError(f"{CONFIG} is no run's config ({error})") from None
    if not math.isfinite(rate):
        raise ValueError(f"{CONFIG} has lr = {rate}, which is no finite number")
    return config


def check_config(config: Any) -> None:
    """Refuse a config that is not a run's, with a ``ValueError`` that says what it lacks."""
    missing = [key for key in _NEEDED if not isinstance(config, dict) or key not in config]
    if missing:
        raise ValueError(f"{CONFIG} lacks {', '.join(missing)}")
    for section in ("model", "optimizer", "data"):
        if not isinstance(config[section], dict) or "name" not in config[section]:
            raise ValueError(f"{CONFIG} has no {section}.name")
    flat = dict(flatten(config))
    for what, (types, keys) in _TYPES.items():
        for key in keys:
            value = flat.get(key)
            if value is None and key in _MAY_LACK:
                continue
            if not isinstance(value, types) or isinstance(value, bool):
                raise ValueError(f"{CONFIG} has {key} = {value!r}, which is no {what}")


def _row(path: Path, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    told = dict(flatten(summary))
    row = dict(flatten(config)) | {"path": str(path), "device": told.get("device")}
    row["steps_done"] = told.pop("steps", None)
    return told | row  # what was measured takes no setting's place


def load(root: str | Path) -> Loaded:
    """Find all runs under a folder.

    Args:
        root: ``<results_dir>/<profile>/runs`` or anything above it; a missing folder holds no
            runs. Live, killed and ended runs are all read; a directory without a usable config is
            skipped, with a warning that names it.
    """
    rows: dict[str, dict[str, Any]] = {}
    loaded = Loaded(pd.DataFrame(), {})
    for path in _run_dirs(Path(root)):
        if path.name in rows:
            other = rows[path.name]["path"]
            loaded.problem(f"{path} is skipped: {other} holds a run of the same name")
            continue
        try:
            config = read_config(path / CONFIG)
        except ValueError as error:
            loaded.damaged.append(path.name)
            loaded.problem(f"{path} is skipped: {error}")
            continue
        summary = read_summary(path)
        if "status" not in summary:
            loaded.problem(f"{path / SUMMARY} is missing or damaged: how the run ended is unknown")
        config["lr"] = float(config["lr"])
        loaded.configs[path.name] = config
        rows[path.name] = _row(path, config, summary)
    loaded.runs = pd.DataFrame.from_dict(rows, orient="index")
    for column in _TEXT_COLUMNS:
        if column not in loaded.runs:
            loaded.runs[column] = None
    for column in _NUMBER_COLUMNS:
        values = loaded.runs.get(column, pd.Series(index=loaded.runs.index, dtype="float64"))
        loaded.runs[column] = pd.to_numeric(values, errors="coerce")
    _refuse_small_states(loaded)
    loaded.runs.index.name = "run"
    return loaded


def _refuse_small_states(loaded: Loaded) -> None:
    """Leave out a measured optimizer state that no optimizer here can have."""
    runs = loaded.runs
    world = pd.to_numeric(runs["world_size"], errors="coerce") if "world_size" in runs else 1
    least = LEAST_STATE_BYTES * runs["n_params"] / np.maximum(np.nan_to_num(world, nan=1.0), 1)
    for run in runs.index[runs["optimizer_state_bytes"] < least]:
        told = runs.at[run, "optimizer_state_bytes"]
        loaded.problem(
            f"{run}: its summary tells of {told:,.0f} bytes of optimizer state for "
            f"{runs.at[run, 'n_params']:,.0f} parameters, which need at least {least[run]:,.0f}: "
            "left out"
        )
        loaded.runs.at[run, "optimizer_state_bytes"] = math.nan
