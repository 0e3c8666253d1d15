"""From the runs of one setting to what a panel draws: smoothed strands, their mean, their ends."""

from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from powerstep_repro.evidence import Cell
from powerstep_repro.figures.smoothing import smooth
from powerstep_repro.figures.style import Dash
from powerstep_repro.runs import Loaded

#: The smoothing's time constant, as a part of the tokens of the whole run.
SMOOTHING = 0.02


@dataclass(frozen=True)
class Strand:
    """One run: finite rows only, and how it ended.

    ``status`` is the run's own: finished, diverged, or one of an unfinished run. ``ended_at`` is
    the step at which it diverged or stands.
    """

    run: str
    status: str
    ended_at: int
    steps: np.ndarray
    tokens: np.ndarray
    raw: np.ndarray
    smooth: np.ndarray


@dataclass(frozen=True)
class Curve:
    """All seeds of one configuration under one label, in one colour and line style."""

    label: str
    color: str
    dash: Dash
    strands: list[Strand]
    planned_tokens: float
    config: dict = field(repr=False)

    @property
    def finished(self) -> list[Strand]:
        """The strands that reached the end: those that may be averaged."""
        return [s for s in self.strands if s.status == "finished"]

    @property
    def others(self) -> list[Strand]:
        """The strands that did not, each drawn by itself to its marked end."""
        return [s for s in self.strands if s.status != "finished"]

    @property
    def last(self) -> float:
        """The smoothed loss at the end: mean of the finished, else the lowest end of the others."""
        ends = [s.smooth[-1] for s in self.finished or self.others if len(s.smooth)]
        if not ends:
            return float("inf")
        return float(np.mean(ends)) if self.finished else float(min(ends))


def planned_tokens(config: dict) -> float:
    """Return how many tokens a config's run sees from its first step to its last."""
    return float(config["steps"]) * config["batch"] * config["context"]


def read_strand(loaded: Loaded, run: str, scale: float) -> Strand:
    """Read one run's training loss and smooth it over ``scale`` tokens."""
    history = loaded.history(run, columns=["step", "tokens", "train_loss"])
    steps = history["step"].to_numpy(dtype=np.int64)
    tokens = history["tokens"].to_numpy(dtype=float)
    loss = history["train_loss"].to_numpy(dtype=float)
    facts = loaded.runs.loc[run]
    status = str(facts["status"])
    good = np.isfinite(loss)
    ended = int(steps[-1]) if len(steps) else 0
    if status == "diverged" and np.isfinite(float(facts["diverged_at"])):
        ended = int(facts["diverged_at"])
    averaged = smooth(tokens, loss, scale)
    return Strand(run, status, ended, steps[good], tokens[good], loss[good], averaged[good])


def read_curve(cell: Cell, label: str, color: str, dash: Dash) -> Curve:
    """Read all runs of one cell as one curve."""
    total = planned_tokens(cell.config)
    strands = [read_strand(cell.loaded, run, SMOOTHING * total) for run in cell.runs]
    strands = [strand for strand in strands if len(strand.steps)]
    return Curve(label, color, dash, strands, total, cell.config)


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
    first = strands[0]
    tokens = first.tokens[np.searchsorted(first.steps, steps)]
    return Mean(tokens, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))
