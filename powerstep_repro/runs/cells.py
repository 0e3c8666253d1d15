"""Which runs a figure shows: exactly its sweep's settings, each with its runs and their ends."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from powerstep_repro.config.identity import canonical, matching_view
from powerstep_repro.runs.load import Loaded

logger = logging.getLogger(__name__)

FINISHED, DIVERGED, UNFINISHED, FAILED = "finished", "diverged", "unfinished", "failed"
#: Of a setting whose runs ended in several ways.
PARTLY = "in part"
NOT_RUN = "not run"
#: Of a setting that was run on another data set alone: not "not run", and not to be mixed in.
OTHER_DATA = "other data"


@dataclass(frozen=True)
class Final:
    """Where one run ended: its validation loss, and that of each window (nats a token).

    ``place`` is what two runs must share to be alike in all but their configs: device and revision.
    """

    loss: float
    windows: np.ndarray | None = None
    place: tuple[str, str] | None = None


@dataclass(frozen=True)
class Outcome:
    """How the runs of one cell ended.

    Attributes:
        status: finished (all), diverged (all), unfinished (none ended), in part (several of
            these), failed, other data (run on another data set alone) or not run.
        finals: the ends of the finished runs by seed.
        diverged: the step of divergence by seed.
        unfinished: the step reached so far by seed.
        blown_up: of finished runs that did worse than a uniform guess after the warm-up, the
            first such step, by seed.
    """

    status: str
    finals: Mapping[int, Final] = field(default_factory=dict)
    diverged: Mapping[int, int] = field(default_factory=dict)
    unfinished: Mapping[int, int] = field(default_factory=dict)
    blown_up: Mapping[int, int] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of runs that ended, well or not."""
        return len(self.finals) + len(self.diverged)

    @property
    def mean(self) -> float:
        """Mean final loss of the finished runs; infinite if none finished and one diverged."""
        if self.finals:
            return float(np.mean([final.loss for final in self.finals.values()]))
        return float("inf") if self.diverged else float("nan")

    def words(self, digits: int = 3) -> str:
        """Say the outcome in a table's cell: a number, or what happened instead of one."""
        steps = ", ".join(f"{step:,}" for step in sorted(set(self.diverged.values())))
        if self.status == DIVERGED:
            return f"diverged at step {steps}"
        if self.status == UNFINISHED:
            return f"unfinished at step {max(self.unfinished.values()):,}"
        parts = [f"{self.mean:.{digits}f}"] if self.finals else []
        if self.diverged:
            parts.append(f"{len(self.diverged)} of {self.n} diverged at step {steps}")
        if self.unfinished:
            parts.append(f"{len(self.unfinished)} unfinished")
        return "; ".join(parts) or self.status


@dataclass(frozen=True)
class Cell:
    """One planned setting and its runs, all on one data set.

    Attributes:
        config: The planned config.
        runs: Names of the runs, replicates of each other, by seed; empty: not run.
        failed: Names of runs that ended in an error; they have no result.
        elsewhere: Names of its runs on other data sets, which are left out.
        loaded: Where the runs were found.
        data_name: Name of the data set of this cell and of those planned on the same; None when
            nothing was run.
        data_hash: Its hash.
        seeds: Those that were asked for; empty: whatever was run.
    """

    config: dict[str, Any]
    runs: list[str]
    failed: list[str]
    elsewhere: list[str]
    loaded: Loaded = field(repr=False)
    data_name: str | None = None
    data_hash: str | None = None
    seeds: tuple[int, ...] = ()

    @property
    def is_missing(self) -> bool:
        """Whether nothing was run, or not every seed that was asked for."""
        return not self.runs or bool({*self.seeds} - {*self.loaded.runs.loc[self.runs, "seed"]})

    @property
    def has_ended(self) -> bool:
        """Whether a run has a result, or each of the seeds that were asked for."""
        ended = {*self.outcome.finals, *self.outcome.diverged}
        return bool(ended) and not {*self.seeds} - ended

    @property
    def model(self) -> str:
        """The model's key."""
        return self.config["model"]["name"]

    @property
    def optimizer(self) -> str:
        """The optimizer's key."""
        return self.config["optimizer"]["name"]

    def value(self, key: str) -> Any:
        """Return a config value by its dotted key; None where the config has no such key."""
        node: Any = self.config
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def finished_runs(self) -> dict[int, str]:
        """Return the names of the runs that finished, by seed."""
        runs = self.loaded.runs.loc[self.runs]
        return {int(r["seed"]): run for run, r in runs.iterrows() if r["status"] == FINISHED}

    @cached_property
    def outcome(self) -> Outcome:
        """How the runs ended."""
        ends: dict[str, dict[int, Any]] = {FINISHED: {}, DIVERGED: {}, UNFINISHED: {}}
        blown_up = {}
        for run in self.runs:
            facts = self.loaded.runs.loc[run]
            seed = int(facts["seed"])
            if facts["status"] == DIVERGED:
                ends[DIVERGED][seed] = int(facts["diverged_at"])
            elif facts["status"] == FINISHED:
                ends[FINISHED][seed] = final_of(self.loaded, run)
                if np.isfinite(facts["blown_up_at"]):
                    blown_up[seed] = int(facts["blown_up_at"])
            else:
                ends[UNFINISHED][seed] = int(np.nan_to_num(facts["steps_done"]))
        seen = [status for status, by_seed in ends.items() if by_seed]
        if seen:
            status = seen[0] if len(seen) == 1 else PARTLY
        elif self.failed:
            status = FAILED
        else:
            status = OTHER_DATA if self.elsewhere else NOT_RUN
        return Outcome(status, *ends.values(), blown_up)


def final_of(loaded: Loaded, run: str) -> Final:
    """Return where a finished run ended."""
    loss = float(loaded.runs.at[run, "final_val_loss"])
    return Final(loss, loaded.windows(run), where_it_ran(loaded, run))


def where_it_ran(loaded: Loaded, run: str) -> tuple[str, str]:
    """Return a run's device and this project's revision: times compare where both are equal."""
    facts = loaded.runs.loc[run]
    revision = facts["git_revision"]  # none where it was installed without its history
    return str(facts["device"]), revision[:7] if isinstance(revision, str) else "n/a"


def select(
    loaded: Loaded, planned: Iterable[dict[str, Any]], seeds: Iterable[int] = ()
) -> list[Cell]:
    """Match runs to planned configs, in their order.

    Args:
        loaded: What ``load`` found.
        planned: Configs, as a sweep expands to. Those that differ in seed alone make one cell:
            every seed that was run is a replicate. Those whose data is configured alike share a
            data set: that with most matching runs, of equals the one last written to. Runs on
            another are named in a warning, and left out.
        seeds: Take runs of these seeds alone; none: of all.
    """
    seeds = tuple(seeds)
    by_setting: dict[str, list[str]] = defaultdict(list)
    for run, config in loaded.configs.items():
        if not seeds or config["seed"] in seeds:
            by_setting[canonical(matching_view(config))].append(run)
    settings: dict[tuple[str, str], dict[str, Any]] = {}  # (data set, setting) -> config
    for config in planned:
        data = canonical([config["data"], config["model"].get("tokenizer")])
        settings.setdefault((data, canonical(matching_view(config))), config)
    chosen = {}
    for group in dict.fromkeys(data for data, _ in settings):
        keys = [setting for data, setting in settings if data == group]
        chosen[group] = _fullest(loaded, [run for key in keys for run in by_setting[key]])

    def cell(data: str, setting: str, config: dict[str, Any]) -> Cell:
        name, digest = chosen[data]
        ours, elsewhere = [], []
        for run in sorted(by_setting[setting], key=lambda run: (loaded.configs[run]["seed"], run)):
            mine = loaded.configs[run]["data"].get("hash") == digest
            (ours if mine else elsewhere).append(run)
        failed = [run for run in ours if loaded.runs.at[run, "status"] == FAILED]
        runs = [run for run in ours if run not in failed]
        return Cell(config, runs, failed, elsewhere, loaded, name, digest, seeds)

    return [cell(*key, config) for key, config in settings.items()]


def _fullest(loaded: Loaded, runs: list[str]) -> tuple[str | None, str | None]:
    """Return name and hash of the data set that most of the runs were made on."""
    by_hash: dict[str | None, list[str]] = defaultdict(list)
    for run in runs:
        by_hash[loaded.configs[run]["data"].get("hash")].append(run)
    if not by_hash:
        return None, None

    def weight(digest: str | None) -> tuple[int, str]:
        facts = loaded.runs.loc[by_hash[digest]]
        newest = facts["updated"].astype(str).max() if "updated" in facts else ""
        return sum(facts["status"] != FAILED), newest

    best = max(by_hash, key=weight)
    for other in by_hash.keys() - {best}:
        count = len(by_hash[other])
        logger.warning("%d matching runs on data %s are left out: not the same set", count, other)
    return loaded.configs[by_hash[best][0]]["data"]["name"], best
