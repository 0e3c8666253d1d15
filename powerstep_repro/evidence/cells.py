"""What figures, tables and the report are made from: the runs of each sweep in one profile.

A figure or a table names its sweeps; each is expanded, and every planned setting gets the runs
that match it on config values. A model's cells are all on one data set. Imports no torch.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from powerstep_repro.config import SweepRefusal, axes, canonical, expand, flatten
from powerstep_repro.config.identity import NOT_IDENTITY
from powerstep_repro.errors import UserError
from powerstep_repro.evidence.memory import paper_counts
from powerstep_repro.evidence.statistics import NOT_RUN, Final
from powerstep_repro.evidence.words import NOTHING
from powerstep_repro.models.count import count
from powerstep_repro.paper import MODELS
from powerstep_repro.paper.claims import Side
from powerstep_repro.runs import Loaded, by_data_set, load, select
from powerstep_repro.runs.checks import windows_agree
from powerstep_repro.runs.loading import DAMAGED

FINISHED, DIVERGED, UNFINISHED, MIXED, FAILED = (
    "finished",
    "diverged",
    "unfinished",
    "mixed",
    "failed",
)
#: Of a setting that was run on another data set alone: not "not run", and not to be mixed in.
OTHER_DATA = "other data"
RESULTS = Path("results")


@dataclass(frozen=True)
class Outcome:
    """How the runs of one cell ended.

    Attributes:
        status: finished (all), diverged (all), unfinished (none ended), damaged (all), mixed,
            failed, other data (run on another data set alone) or not run.
        finals: final losses of the finished runs by seed.
        diverged: the step of divergence by seed.
        unfinished: the step reached so far by seed.
        damaged: seeds of runs that ended, but without a final loss that can be used.
        blown_up: of finished runs that did worse than a uniform guess after the warm-up, the
            first such step, by seed.
    """

    status: str
    finals: Mapping[int, Final] = field(default_factory=dict)
    diverged: Mapping[int, int] = field(default_factory=dict)
    unfinished: Mapping[int, int] = field(default_factory=dict)
    blown_up: Mapping[int, int] = field(default_factory=dict)
    damaged: tuple[int, ...] = ()

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
        if self.status == FINISHED:
            return f"{self.mean:.{digits}f}"
        steps = ", ".join(f"{step:,}" for step in sorted(set(self.diverged.values())))
        if self.status == DIVERGED:
            return f"diverged at step {steps}"
        if self.status == UNFINISHED:
            return f"unfinished at step {max(self.unfinished.values()):,}"
        if self.status == MIXED:
            parts = [f"{self.mean:.{digits}f}"] if self.finals else []
            if self.diverged:
                parts.append(f"{len(self.diverged)} of {self.n} diverged at step {steps}")
            if self.unfinished:
                parts.append(f"{len(self.unfinished)} unfinished")
            if self.damaged:
                parts.append(f"{len(self.damaged)} damaged")
            return "; ".join(parts)
        return self.status


@dataclass(frozen=True)
class Cell:
    """One planned setting with its runs, all on one data set.

    ``seeds`` are those that were asked for; empty: whatever was run.
    """

    config: dict[str, Any]
    runs: list[str]
    failed: list[str]
    loaded: Loaded = field(repr=False)
    data_name: str | None
    data_hash: str | None
    elsewhere: list[str] = field(default_factory=list)
    seeds: tuple[int, ...] = ()

    @property
    def is_missing(self) -> bool:
        """Whether nothing was run, or not every seed that was asked for."""
        return not self.runs or bool({*self.seeds} - {*self.loaded.runs.loc[self.runs, "seed"]})

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

    def is_side(self, side: Side) -> bool:
        """Whether this is the optimizer and has the values that a claim's side asks for."""
        return self.optimizer == side.optimizer and all(
            canonical(self.value(key)) == canonical(wanted) for key, wanted in side.where.items()
        )

    @cached_property
    def scaled_to(self) -> int | None:
        """The model's parameters where the profile scales it down or up; None at full size."""
        return scaled_to(self.config)

    @cached_property
    def outcome(self) -> Outcome:
        """How the runs ended."""
        finals, diverged, unfinished, blown_up, damaged = {}, {}, {}, {}, []
        for run in self.runs:
            facts = self.loaded.runs.loc[run]
            seed, state = int(facts["seed"]), self.loaded.state(run)
            if state == DIVERGED:
                diverged[seed] = int(_number(facts["diverged_at"], _number(facts["steps_done"], 0)))
            elif state == FINISHED:
                finals[seed] = final_of(self.loaded, run)
                if np.isfinite(_number(facts["blown_up_at"])):
                    blown_up[seed] = int(facts["blown_up_at"])
            elif state == DAMAGED:
                damaged.append(seed)
            else:
                unfinished[seed] = int(_number(facts["steps_done"], 0))
        kinds = [bool(finals), bool(diverged), bool(unfinished), bool(damaged)]
        if sum(kinds) > 1:
            status = MIXED
        elif sum(kinds) == 1:
            status = (FINISHED, DIVERGED, UNFINISHED, DAMAGED)[kinds.index(True)]
        elif self.failed:
            status = FAILED
        else:
            status = OTHER_DATA if self.elsewhere else NOT_RUN
        return Outcome(status, finals, diverged, unfinished, blown_up, tuple(damaged))


def final_of(loaded: Loaded, run: str) -> Final:
    """Return where a run ended that is finished and sound; without windows that do not fit it."""
    loss, windows = loaded.final_loss(run), loaded.windows(run)
    if windows is not None and not windows_agree(windows, loss):
        loaded.problem(f"{run}: its windows.json does not average to its final loss: left out")
        windows = None
    return Final(loss, windows, where_it_ran(loaded, run))


def where_it_ran(loaded: Loaded, run: str) -> tuple[str, str]:
    """Return a run's device and this project's revision: times compare where both are equal."""
    facts = loaded.runs.loc[run]
    revision = facts["git_revision"]  # none where it was installed without its history
    return str(facts["device"]), revision[:7] if isinstance(revision, str) else NOTHING


@lru_cache(maxsize=64)
def full_size(model: str) -> int:
    """Return the parameters of a model of the paper."""
    return paper_counts(model).n_params


def scaled_to(config: Mapping[str, Any]) -> int | None:
    """Return a config's parameters where its model is scaled; None at the paper's size."""
    model = config["model"]["name"]
    if model not in MODELS:
        return None
    ours = count(config["model"]).n_params
    return None if ours == full_size(model) else ours


def _number(value: Any, default: Any = float("nan")) -> float:
    """Read a summary's field: null, missing and NaN give the default."""
    return float(value) if value is not None and value == value else float(default or 0)


@dataclass(frozen=True)
class Source:
    """A sweep's cells in the order of its expansion, and how to run what is missing.

    ``overrides`` are those beyond the profile, ``results_dir`` among them where it is not the
    default.
    """

    sweep: str
    profile: str
    overrides: tuple[str, ...]
    cells: list[Cell]
    warnings: list[str]

    def find(self, model: str | None = None, side: Side | None = None, **values: Any) -> list[Cell]:
        """Return the cells of a model and a side with the given config values, in order."""
        return [
            cell
            for cell in self.cells
            if (model is None or cell.model == model)
            and (side is None or cell.is_side(side))
            and all(canonical(cell.value(k)) == canonical(v) for k, v in values.items())
        ]

    def command(self, *extra: str) -> str:
        """Return the command that trains what is missing, to be pasted into a shell.

        Args:
            extra: further overrides; of one key the last counts.
        """
        given = [f"profile={self.profile}", *self.overrides, *extra]
        by_key = {word.partition("=")[0]: word for word in given}
        words = ["python -m powerstep_repro.sweep", self.sweep, *map(shlex.quote, by_key.values())]
        needs_path = any(
            cell.config["data"].get("path", "") is None and cell.config["data"]["kind"] == "tokens"
            for cell in self.cells
        )
        return " ".join(words + (["data.path=FOLDER"] if needs_path else []))

    def missing_command(self) -> str | None:
        """Return the command that trains what is missing, models that are whole left out."""
        missing = [cell for cell in self.cells if cell.is_missing]
        if not missing:
            return None
        models = list(dict.fromkeys(cell.model for cell in missing))
        every = {cell.model for cell in self.cells}
        return self.command(*([f"model={','.join(models)}"] if len(models) < len(every) else []))


def _selects(key: str) -> bool:
    """Whether an override of a key changes which runs are shown."""
    return key.lstrip("+").partition(".")[0] not in {*NOT_IDENTITY, "data"}


@lru_cache(maxsize=64)
def _expanded(sweep: str, overrides: tuple[str, ...]) -> list[dict[str, Any]]:
    """The configs of a sweep, not to be changed; composed once a process."""
    return [planned.config for planned in expand(sweep, overrides)]


class Evidence:
    """All runs of one profile under one results folder, read once; sources by sweep.

    Args:
        results_dir: the folder that holds ``<profile>/runs``.
        profile: tiny, h100 or paper.
        overrides: config overrides for every sweep, as on the sweep's command line. ``seed``
            chooses among the replicates; without it all count.
    """

    def __init__(self, results_dir: str | Path, profile: str, overrides: Sequence[str] = ()):
        self.folder = Path(results_dir) / profile
        self.profile = profile
        self.overrides = tuple(overrides)
        self._place = () if Path(results_dir) == RESULTS else (f"results_dir={results_dir}",)
        self._sources: dict[tuple[str, tuple[str, ...]], Source] = {}

    @property
    def arguments(self) -> list[str]:
        """The words of a command line that ask for this evidence."""
        return [f"profile={self.profile}", *map(shlex.quote, (*self._place, *self.overrides))]

    def file_name(self, name: str) -> str:
        """Name a file after what it shows: what a selection shows never replaces the whole."""
        chosen = [word for word in self.overrides if _selects(word.partition("=")[0])]
        return "-".join([name, *(re.sub(r"[^\w.=,+-]", "_", word) for word in chosen)])

    def check(self, sweeps: Sequence[str]) -> None:
        """Refuse overrides that the sweeps cannot take, before anything is read or drawn."""
        refused: dict[str, SweepRefusal] = {}
        for sweep in sweeps:
            try:
                _expanded(sweep, self._given())
            except SweepRefusal as error:
                refused[sweep] = error
        if len(refused) == 1:
            raise next(iter(refused.values()))
        if refused:
            override = next(iter(refused.values())).override
            keys = dict.fromkeys(key for error in refused.values() for key in error.keys)
            raise UserError(
                f"sweeps {', '.join(refused)} cannot take {override}: they vary "
                f"{', '.join(keys)}, which {override.partition('=')[2]} does not have; ask by "
                "name for figures or tables of other sweeps"
            )

    def _given(self, extra: Sequence[str] = ()) -> tuple[str, ...]:
        return (f"profile={self.profile}", *self.overrides, *extra)

    @cached_property
    def loaded(self) -> Loaded:
        """The runs, their configs and summaries; histories are read when asked for."""
        return load(self.folder / "runs")

    def source(self, sweep: str, *extra: str) -> Source:
        """Return the cells of a sweep, with further overrides if any."""
        key = (sweep, extra)
        if key not in self._sources:
            self._sources[key] = self._match(sweep, extra)
        return self._sources[key]

    def known_sources(self) -> list[Source]:
        """The sources that were asked for so far."""
        return list(self._sources.values())

    def single_overrides(self) -> list[str]:
        """Return the overrides that leave a key one value: of several, a setting is none."""
        return [values[0] for values in axes(self.overrides).values() if len(values) == 1]

    def sources_or(self, sweeps: Sequence[str], *stand_in: str) -> list[Source]:
        """Return sweeps' sources, or at ``h100``, if those have more runs, with other overrides.

        Some sweeps of the paper are on a model that is too large for a budget of minutes; the
        same sweeps on a smaller one then stand in, and what is drawn must say so.
        """
        choices = [[self.source(sweep) for sweep in sweeps]]
        chosen = any(word.startswith("model=") for word in self.overrides)
        if self.profile == "h100" and not chosen:
            choices.append([self.source(sweep, *stand_in) for sweep in sweeps])
        return max(choices, key=lambda c: sum(bool(cell.runs) for s in c for cell in s.cells))

    def _match(self, sweep: str, extra: tuple[str, ...]) -> Source:
        given = self._given(extra)
        configs, loaded, seeds = _expanded(sweep, given), self.loaded, ()
        if "seed" in axes(given):
            seeds = tuple(sorted({config["seed"] for config in configs}))
            among = {run: c for run, c in loaded.configs.items() if c["seed"] in seeds}
            loaded = replace(loaded, configs=among)
        found: dict[int, Cell] = {}
        warnings: list[str] = []
        for group in by_data_set(configs):
            selection = select(loaded, group)
            warnings += selection.warnings
            for cell in selection.cells:
                found[id(cell.config)] = Cell(
                    cell.config,
                    [run for run in cell.runs if run not in self.loaded.copies],
                    cell.failed,
                    self.loaded,
                    selection.data_name,
                    selection.data_hash,
                    cell.elsewhere,
                    seeds,
                )
        cells = [found[id(config)] for config in configs if id(config) in found]
        return Source(sweep, self.profile, self._place + self.overrides + extra, cells, warnings)


def hyperparameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optimizer's own hyperparameters of a config, without its name."""
    return {k: v for k, v in flatten(config["optimizer"]) if k != "name"}
