"""From the logs of one setting to curves: smoothed strands, their mean, their ends."""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from powerstep_repro.evidence.smoothing import smooth
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import FINISHED

#: The smoothing's scale to either side, as a part of the tokens of the whole run.
SMOOTHING = 0.01


@dataclass(frozen=True)
class Strand:
    """One run: the rows with a finite loss, and how it ended.

    ``status`` is the run's own. ``ended_at`` is the step at which it diverged or stands. The arrays
    are (k,).
    """

    status: str
    ended_at: int
    steps: np.ndarray
    tokens: np.ndarray
    raw: np.ndarray
    smooth: np.ndarray


@dataclass(frozen=True)
class Curve:
    """All seeds of one setting of which anything can be drawn."""

    strands: list[Strand]
    planned_tokens: float

    @property
    def finished(self) -> list[Strand]:
        """The strands that reached the end: those that may be averaged."""
        return [s for s in self.strands if s.status == FINISHED]

    @property
    def others(self) -> list[Strand]:
        """The strands that did not, each drawn by itself to its marked end."""
        return [s for s in self.strands if s.status != FINISHED]

    @property
    def last(self) -> float:
        """The smoothed loss at the end: mean of the finished, else the lowest end of the others."""
        if self.finished:
            return float(np.mean([s.smooth[-1] for s in self.finished]))
        return float(min((s.smooth[-1] for s in self.others), default=np.inf))


def read_strand(cell: Cell, run: str) -> Strand:
    """Read the training loss of one of a cell's runs and smooth it."""
    facts = cell.loaded.runs.loc[run]
    log = cell.loaded.history(run, columns=["step", "tokens", "train_loss"])
    steps = log["step"].to_numpy(dtype=np.int64)
    tokens, loss = (log[name].to_numpy(dtype=float) for name in ("tokens", "train_loss"))
    averaged = smooth(tokens, loss, SMOOTHING * _planned_tokens(cell))
    good = np.isfinite(loss)  # all but the last row of a run that diverged
    ended = int(steps[-1]) if len(steps) else 0
    return Strand(facts["status"], ended, steps[good], tokens[good], loss[good], averaged[good])


def _planned_tokens(cell: Cell) -> float:
    return float(cell.config["steps"]) * cell.config["batch"] * cell.config["context"]


def read_curve(cell: Cell) -> Curve:
    """Read all runs of one cell as one curve."""
    strands = [read_strand(cell, run) for run in cell.runs]
    return Curve([strand for strand in strands if len(strand.steps)], _planned_tokens(cell))


def smoothed(cell: Cell) -> dict[int, Strand]:
    """Return the smoothed training loss of a cell's finished runs, by seed."""
    return {seed: read_strand(cell, run) for seed, run in cell.finished_runs().items()}


@dataclass(frozen=True)
class Mean:
    """The finished strands of a curve on the steps that all of them logged; arrays of (k,)."""

    tokens: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_over_seeds(strands: list[Strand]) -> Mean:
    """Average smoothed strands where all have a row: nothing is interpolated.

    The band is the range over seeds.
    """
    steps = reduce(np.intersect1d, [s.steps for s in strands])
    rows = np.stack([s.smooth[np.searchsorted(s.steps, steps)] for s in strands])
    tokens = strands[0].tokens[np.searchsorted(strands[0].steps, steps)]
    return Mean(tokens, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))
