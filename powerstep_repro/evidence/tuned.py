"""Each optimizer at the best of the learning rates that were run for it."""

from powerstep_repro.evidence.cells import Cell, Evidence
from powerstep_repro.evidence.compare import judge_parity
from powerstep_repro.evidence.labels import variant
from powerstep_repro.evidence.statistics import INCONCLUSIVE, NOT_RUN, BestRate, best_rate
from powerstep_repro.paper import MARGIN

#: Sweeps that hold runs of one optimizer at several rates.
RATE_SWEEPS = ("lr_all", "lr_tuned", "seeds")


def tuned_cells(evidence: Evidence) -> dict[str, tuple[BestRate | None, Cell, list[Cell]]]:
    """Choose the best learning rate of each optimizer on GPT-2 Small.

    Returns:
        By optimizer (and code): the choice, its cell (the first of the grid if nothing ended),
        and all cells that were run, by rate.
    """
    by_name: dict[str, dict[float, Cell]] = {}
    for sweep in RATE_SWEEPS:
        for cell in evidence.source(sweep).cells:
            by_name.setdefault(variant(cell), {}).setdefault(cell.config["lr"], cell)
    chosen = {}
    for name, cells in by_name.items():
        ended = {lr: cell.outcome.mean for lr, cell in cells.items() if cell.outcome.n}
        best = best_rate(ended)
        # Where nothing ended: a cell that can say what became of it, if there is one.
        known = (cell for cell in cells.values() if cell.outcome.status != NOT_RUN)
        shown = cells[best.lr] if best else next(known, next(iter(cells.values())))
        chosen[name] = (best, shown, [cell for _, cell in sorted(cells.items()) if cell.outcome.n])
    return chosen


def judge_tuned(
    ours: tuple[BestRate, Cell, list[Cell]],
    theirs: tuple[BestRate, Cell, list[Cell]],
    margin: float = MARGIN,
) -> str:
    """Judge "each at its own best rate, these two end alike".

    Open, whatever the gap, while a side's best rate is the edge of what was run for it: beyond
    the edge that side may end lower.
    """
    if ours[0] is None or theirs[0] is None:
        return NOT_RUN
    verdict = judge_parity(ours[1], theirs[1], margin)
    return INCONCLUSIVE if ours[0].edge or theirs[0].edge else verdict
