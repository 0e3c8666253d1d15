"""Each optimizer at the best of the learning rates that were run for it, on GPT-2 Small."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from powerstep_repro.evidence.compare import gap_of, judge_parity
from powerstep_repro.evidence.curves import smoothed
from powerstep_repro.evidence.sources import Evidence
from powerstep_repro.evidence.statistics import INCONCLUSIVE, Gap
from powerstep_repro.evidence.words import variant
from powerstep_repro.paper import MARGIN
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import NOT_RUN

#: Sweeps that hold runs of one optimizer at several rates.
RATE_SWEEPS = ("lr_all", "lr_tuned", "seeds")
#: The paper claims parity at its own rate for PowerStep alone.
NO_CLAIM = "no claim"


@dataclass(frozen=True)
class Tuned:
    """One optimizer at its best rate.

    Attributes:
        cell: the best of those that were run; any of them, if none ended.
        ran: all cells that ended, by rate.
        edge: ``lowest`` or ``highest`` if the best is the grid's end, ``only`` for a grid of one,
            else None.
        gap: to AdamW at its best.
        verdict: on parity with AdamW.
        steps_to: the first step at which AdamW's final training loss is reached, in words.
    """

    cell: Cell
    ran: tuple[Cell, ...]
    edge: str | None
    gap: Gap | None = None
    verdict: str = NO_CLAIM
    steps_to: str = "n/a"

    @property
    def ended(self) -> bool:
        """Whether a run of it finished at any rate."""
        return bool(self.cell.outcome.finals)

    @property
    def lr(self) -> float:
        """The best rate."""
        return self.cell.config["lr"]


def best_rate(losses: Mapping[float, float]) -> tuple[float, str | None] | None:
    """Choose the rate with the lowest loss; a diverged run enters as infinity and never wins.

    Args:
        losses: mean final validation loss by learning rate.

    Returns:
        The rate and, where better ones may lie beyond it, on which edge of those run it lies:
        ``lowest``, ``highest`` or ``only``. None if no rate has a finite loss.
    """
    finite = {lr: loss for lr, loss in losses.items() if np.isfinite(loss)}
    if not finite:
        return None
    best = min(sorted(finite), key=finite.__getitem__)
    if len(losses) == 1:
        return best, "only"
    edges = {min(losses): "lowest", max(losses): "highest"}
    return best, edges.get(best)


def tuned(evidence: Evidence) -> dict[str, Tuned]:
    """Choose each optimizer's best rate, and compare it with AdamW at its own; by ``variant``."""
    chosen: dict[str, Tuned] = {}
    for name, cells in _by_variant(evidence).items():
        ran = tuple(cell for _, cell in sorted(cells.items()) if cell.outcome.n)
        best = best_rate({cell.config["lr"]: cell.outcome.mean for cell in ran})
        # Where nothing ended: a cell that can say what became of it, if there is one.
        known = (cell for cell in cells.values() if cell.outcome.status != NOT_RUN)
        shown = cells[best[0]] if best else next(known, next(iter(cells.values())))
        chosen[name] = Tuned(shown, ran, best and best[1])
    adamw = chosen["adamw"]
    return {
        name: Tuned(
            own.cell,
            own.ran,
            own.edge,
            gap_of(own.cell, adamw.cell),
            _verdict(own, adamw),
            _steps_to(own.cell, adamw.cell),
        )
        for name, own in chosen.items()
    }


def _by_variant(evidence: Evidence) -> dict[str, dict[float, Cell]]:
    found: dict[str, dict[float, Cell]] = {}
    for sweep in RATE_SWEEPS:
        for cell in evidence.source(sweep).cells:
            found.setdefault(variant(cell), {}).setdefault(cell.config["lr"], cell)
    return found


def _verdict(own: Tuned, adamw: Tuned) -> str:
    if own is adamw:
        return "reference"
    if not own.cell.optimizer.startswith("powerstep"):
        return NO_CLAIM
    return judge_tuned(own, adamw) if own.ended else own.cell.outcome.status


def judge_tuned(ours: Tuned, theirs: Tuned, margin: float = MARGIN) -> str:
    """Judge "each at its own best rate, these two end alike".

    Open, whatever the gap, while a side's best rate is the edge of what was run for it: beyond
    the edge that side may end lower.
    """
    if not (ours.ended and theirs.ended):
        return NOT_RUN
    verdict = judge_parity(ours.cell, theirs.cell, margin)
    return INCONCLUSIVE if ours.edge or theirs.edge else verdict


def training_gap(ours: Tuned, theirs: Tuned) -> float | None:
    """Return the gap in smoothed training loss at the end, in the mean over shared seeds."""
    ends = [
        {seed: float(strand.smooth[-1]) for seed, strand in smoothed(side.cell).items()}
        for side in (ours, theirs)
    ]
    shared = ends[0].keys() & ends[1].keys()
    return float(np.mean([ends[0][s] - ends[1][s] for s in shared])) if shared else None


def first_step_at_or_below(steps: np.ndarray, losses: np.ndarray, target: float) -> int | None:
    """Return the first step whose loss is at most target, or None; both (k,), steps ascending."""
    hits = np.flatnonzero(np.asarray(losses) <= target)
    return int(steps[hits[0]]) if len(hits) else None


def _steps_to(cell: Cell, adamw: Cell) -> str:
    """Mean over seeds of the first step at or below AdamW's end, of the same seed if it has it."""
    if not cell.outcome.finals:
        return cell.outcome.words()
    targets = {seed: float(strand.smooth[-1]) for seed, strand in smoothed(adamw).items()}
    strands = smoothed(cell)
    if not targets or not strands:
        return "n/a"
    mean = float(np.mean(list(targets.values())))
    hits = [
        first_step_at_or_below(strand.steps, strand.smooth, targets.get(seed, mean))
        for seed, strand in strands.items()
    ]
    reached = [hit for hit in hits if hit is not None]
    if not reached:
        return "not reached"
    text = f"{np.mean(reached):,.0f} of {cell.config['steps']:,}"
    return text if len(reached) == len(hits) else f"{text} ({len(reached)} of {len(hits)} runs)"
