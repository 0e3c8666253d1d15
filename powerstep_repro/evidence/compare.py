"""Cells compared: gap with interval, verdict, collapse, and which cell of a row is best."""

from collections.abc import Sequence

import numpy as np

from powerstep_repro.evidence.statistics import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Gap,
    order,
    paired_gap,
    parity,
    same_side,
)
from powerstep_repro.evidence.words import NOTHING, signed
from powerstep_repro.paper.assumed import COLLAPSE_NATS
from powerstep_repro.paper.claims import MARGIN
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import FINISHED, NOT_RUN

#: What the remark of a gap means.
MIXED = (
    "Mixed: a seed's two runs are of different devices or revisions of this project, whose kernels "
    "round otherwise."
)


def gap_of(subject: Cell, reference: Cell | None) -> Gap | None:
    """Return the paired gap in final validation loss; None if no seed is shared."""
    if reference is None or subject.data_hash != reference.data_hash:
        return None
    return paired_gap(subject.outcome.finals, reference.outcome.finals)


def gap_words(gap: Gap | None, beside: tuple[float, float] | None = None) -> str:
    """Write a gap with its interval: ``+0.012 [+0.004, +0.020]``.

    Args:
        gap: What was compared.
        beside: The two losses beside which it stands; where the gap is of fewer seeds, and so of
            other means, it tells them.
    """
    if gap is None:
        return NOTHING
    words, remarks = signed(gap.mean), []
    if gap.has_interval:
        words += f" [{signed(gap.low)}, {signed(gap.high)}]"
    if beside and not np.allclose(beside, gap.means, rtol=0, atol=5e-7):
        remarks.append(f"n={gap.n}: {gap.means[0]:.3f} − {gap.means[1]:.3f}")
    if gap.mixed:
        remarks.append("mixed")
    return f"{words} ({', '.join(remarks)})" if remarks else words


def gap_words_beside(gap: Gap | None, subject: Cell, reference: Cell) -> str:
    """Write a gap that stands beside the mean losses of both cells."""
    return gap_words(gap, (subject.outcome.mean, reference.outcome.mean))


def judge_cell(subject: Cell, reference: Cell | None, paper_gap: float) -> str:
    """Judge one printed cell: our gap to AdamW against the side of the margin the paper is on."""
    outcome = subject.outcome
    if not outcome.n:
        return NOT_RUN
    if outcome.diverged:
        if outcome.finals or outcome.n < 2:
            return INCONCLUSIVE
        return REPRODUCED if paper_gap > MARGIN else NOT_REPRODUCED
    gap = gap_of(subject, reference)
    return INCONCLUSIVE if gap is None else same_side(gap, paper_gap)


def judge_parity(subject: Cell, reference: Cell, margin: float = MARGIN) -> str:
    """Judge "these two end alike"; one whose every run diverged does not."""
    if not subject.outcome.n or not reference.outcome.n:
        return NOT_RUN
    if subject.outcome.diverged:
        return NOT_REPRODUCED if _all_diverged(subject, reference) else INCONCLUSIVE
    gap = gap_of(subject, reference)
    return INCONCLUSIVE if gap is None else parity(gap, margin)


def judge_order(subject: Cell, reference: Cell) -> str:
    """Judge "the subject ends higher than the reference"; a diverged subject ends higher."""
    if not subject.outcome.n or not reference.outcome.n:
        return NOT_RUN
    if subject.outcome.diverged:
        return REPRODUCED if _all_diverged(subject, reference) else INCONCLUSIVE
    gap = gap_of(subject, reference)
    return INCONCLUSIVE if gap is None else order(gap)


def _all_diverged(subject: Cell, reference: Cell) -> bool:
    """Whether every run of several diverged, where the reference trains."""
    outcome = subject.outcome
    return not outcome.finals and outcome.n > 1 and bool(reference.outcome.finals)


def collapsed(subject: Cell, reference: Cell | None) -> list[bool]:
    """Say for each ended run whether it collapsed: diverged, or far above the reference's mean."""
    level = reference.outcome.mean if reference is not None else float("nan")
    ends = [final.loss >= level + COLLAPSE_NATS for final in subject.outcome.finals.values()]
    return ends + [True] * len(subject.outcome.diverged)


def judge_collapse(subject: Cell, reference: Cell | None) -> str:
    """Judge "it collapses": every run does, none does, or n = 1 and neither can be said."""
    runs = collapsed(subject, reference)
    if not runs:
        return NOT_RUN
    known = reference is not None and np.isfinite(reference.outcome.mean)
    if len(runs) < 2 or not (known or all(runs)):
        return INCONCLUSIVE
    if all(runs):
        return REPRODUCED
    return INCONCLUSIVE if any(runs) else NOT_REPRODUCED


def clear_best(cells: Sequence[Cell]) -> Cell | None:
    """Return the cell that ends lowest, if the interval of every other's gap to it is above zero.

    A tie, a single seed, or a best that some run of its own did not reach gives None.
    """
    ran = [cell for cell in cells if cell.outcome.n]
    whole = [cell for cell in ran if cell.outcome.status == FINISHED]
    if len(ran) < 2 or not whole:
        return None
    best = min(whole, key=lambda cell: cell.outcome.mean)
    others = [cell for cell in ran if cell is not best]
    return best if all(judge_order(other, best) == REPRODUCED for other in others) else None
