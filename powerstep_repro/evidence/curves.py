"""From the runs of one setting to what a panel draws: smoothed strands, their mean, their ends."""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from powerstep_repro.evidence import Cell
from powerstep_repro.evidence.smoothing import smooth
from powerstep_repro.runs import Loaded
from powerstep_repro.runs.checks import first_hole

#: The smoothing's scale to either side, as a part of the tokens of the whole run.
SMOOTHING = 0.01
#: The status of a finished run whose log lacks its end: not to be averaged with whole ones.
CUT = "log cut"


@dataclass(frozen=True)
class Strand:
    """One run: finite rows only, and how it ended.

    ``status`` is the run's own: finished, diverged, or one of an unfinished run; or ``CUT``.
    ``ended_at`` is the step at which it diverged or stands.
    """

    run: str
    status: str
    ended_at: int
    steps: np.ndarray
    tokens: np.ndarray
    raw: np.ndarray
    smooth: np.ndarray


def planned_tokens(config: dict) -> float:
    """Return how many tokens a config's run sees from its first step to its last."""
    return float(config["steps"]) * config["batch"] * config["context"]


def read_strand(cell: Cell, run: str) -> Strand:
    """Read the training loss of one of a cell's runs and smooth it; warn of what its log lacks."""
    loaded, total = cell.loaded, planned_tokens(cell.config)
    history = loaded.history(run, columns=["step", "tokens", "train_loss"])
    steps = history["step"].to_numpy(dtype=np.int64)
    # No line may bridge what was not logged: the strand ends at a hole, as one that is cut does.
    hole = first_hole(steps, loaded.configs[run].get("log_interval"))
    if hole:
        history = history[steps <= hole[0]]
        steps = steps[steps <= hole[0]]
    tokens = history["tokens"].to_numpy(dtype=float)
    loss = history["train_loss"].to_numpy(dtype=float)
    facts = loaded.runs.loc[run]
    status = facts["status"] if isinstance(facts["status"], str) else "end unknown"
    ended = int(steps[-1]) if len(steps) else 0
    if status == "diverged" and np.isfinite(float(facts["diverged_at"])):
        ended = int(facts["diverged_at"])

    tokens = np.where(tokens <= 1.001 * total, tokens, np.nan)
    before = np.fmax.accumulate(np.concatenate([[0.0], tokens]))[:-1]
    sound = tokens > before
    if not sound.all():
        count = np.count_nonzero(~sound)
        loaded.problem(f"{run}: {count} rows of its log are left out, no count of tokens fits them")
        steps, tokens, loss = steps[sound], tokens[sound], loss[sound]
    averaged = smooth(tokens, loss, SMOOTHING * total)
    good = np.isfinite(loss) & np.isfinite(averaged)
    # A run that diverges ends in a row without a loss; nothing else does.
    if not good[: -1 if status == "diverged" else None].all():
        loaded.problem(f"{run}: rows of its log are left out, they have no finite training loss")
    rows = steps if status == "diverged" else steps[good]
    last = int(rows[-1]) if good.any() else 0
    told = ended if status == "diverged" else float(facts["steps_done"])
    if last and _is_cut(loaded, run, last, told):
        if not hole:
            loaded.problem(
                f"{run}: its log ends at step {last:,}, its summary tells of {told:,.0f}"
            )
        status, ended = (CUT, last) if status == "finished" else (status, ended)
    return Strand(run, status, ended, steps[good], tokens[good], loss[good], averaged[good])


def _is_cut(loaded: Loaded, run: str, last: int, told: float) -> bool:
    """Whether a log ends sooner than the summary tells, by more than the steps between rows."""
    between = loaded.configs[run].get("log_interval")
    return last + (between if isinstance(between, int) else 1) < told


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
    first = strands[0]
    if all(np.array_equal(first.steps, s.steps) for s in strands):
        tokens, rows = first.tokens, np.stack([s.smooth for s in strands])
        return Mean(tokens, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))
    steps = reduce(np.intersect1d, [s.steps for s in strands])
    rows = np.stack([s.smooth[np.searchsorted(s.steps, steps)] for s in strands])
    tokens = first.tokens[np.searchsorted(first.steps, steps)]
    return Mean(tokens, rows.mean(axis=0), rows.min(axis=0), rows.max(axis=0))
