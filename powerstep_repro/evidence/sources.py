"""All runs of one profile, cell by cell: each sweep expanded and matched to the runs of it.

A figure or a table names its sweeps. Imports no torch.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from powerstep_repro.config import axes, canonical, expand
from powerstep_repro.config.identity import NOT_IDENTITY
from powerstep_repro.paper.claims import Side
from powerstep_repro.runs import Cell, Loaded, load, select

RESULTS = Path("results")
#: Of sweeps on GPT-2 Medium, what makes them ones on a model that trains in minutes.
STAND_INS = dict.fromkeys(("beta", "gamma"), "model=gpt2_small")


def is_side(cell: Cell, side: Side) -> bool:
    """Whether a cell is of the optimizer and has the values that a claim's side asks for.

    Other rules for some of the parameters (``groups``) must be asked for.
    """
    if cell.config.get("groups") and not any(key.startswith("groups.") for key in side.where):
        return False
    return cell.optimizer == side.optimizer and all(
        canonical(cell.value(key)) == canonical(wanted) for key, wanted in side.where.items()
    )


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

    def find(self, model: str | None = None, side: Side | None = None, **values: Any) -> list[Cell]:
        """Return the cells of a model and a side with the given config values, in order."""
        return [
            cell
            for cell in self.cells
            if (model is None or cell.model == model)
            and (side is None or is_side(cell, side))
            and all(canonical(cell.value(k)) == canonical(v) for k, v in values.items())
        ]

    def count(self) -> int:
        """Count the settings that were run."""
        return sum(bool(cell.runs) for cell in self.cells)

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
        for sweep in sweeps:
            _expanded(sweep, self._given())

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

    def shown(self, sweep: str) -> Source:
        """Return a sweep's source or, at ``h100``, one on a smaller model that has more runs.

        Some sweeps of the paper are on a model that is too large for a budget of minutes; the
        same sweep on a smaller one then stands in, and what is shown of it must say so.
        """
        own = self.source(sweep)
        chosen = any(word.startswith("model=") for word in self.overrides)
        if self.profile != "h100" or chosen or sweep not in STAND_INS:
            return own
        return max(own, self.source(sweep, STAND_INS[sweep]), key=Source.count)

    def _match(self, sweep: str, extra: tuple[str, ...]) -> Source:
        given = self._given(extra)
        configs = _expanded(sweep, given)
        seeds = sorted({config["seed"] for config in configs}) if "seed" in axes(given) else ()
        cells = select(self.loaded, configs, seeds)
        return Source(sweep, self.profile, self._place + self.overrides + extra, cells)
