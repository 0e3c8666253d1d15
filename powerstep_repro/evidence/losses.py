"""The numbers of the three tables of validation losses, each beside the paper's own."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerstep_repro.evidence.compare import clear_best, gap_of, judge_cell, judge_collapse
from powerstep_repro.evidence.memory import scaled_to
from powerstep_repro.evidence.sources import Evidence
from powerstep_repro.evidence.statistics import ELSEWHERE, Gap
from powerstep_repro.evidence.words import NO_VERDICT, NOTHING, plain, variant, variant_label
from powerstep_repro.paper import TABLES, value
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import FINISHED

SWEEPS = {"valid_small": "small", "quant_valid": "quant", "valid_large": "large"}
#: What the paper says in the place of a number.
COLLAPSES = "collapses"


@dataclass(frozen=True)
class Row:
    """One cell beside the paper's number and beside AdamW.

    Attributes:
        cell: our runs.
        reference: AdamW's cell of the same model.
        paper: what the paper prints, in words.
        printed: the same as a number, where it is one.
        paper_gap: the paper's gap to AdamW, where it prints both.
        gap: our gap to AdamW.
        verdict: on the paper's number.
        best: whether it ends lowest of its model, and clearly.
    """

    cell: Cell
    reference: Cell | None
    paper: str
    printed: float | None
    paper_gap: float | None
    gap: Gap | None
    verdict: str
    best: bool = False

    @property
    def is_reference(self) -> bool:
        """Whether it is AdamW itself."""
        return self.cell is self.reference

    def long(self) -> dict[str, object]:
        """Return it as a row of the CSV."""
        return long_row(self.cell, self.gap, self.verdict, not self.is_reference) | {
            "paper": self.paper,
            "paper_gap": plain(self.paper_gap),
        }


def long_row(cell: Cell, gap: Gap | None, verdict: str, has_interval: bool) -> dict[str, object]:
    """Return the columns that every CSV of losses has of a cell and its gap to AdamW."""
    outcome = cell.outcome
    ends = (gap.low, gap.high) if gap and has_interval else (None, None)
    return {
        "model": cell.model,
        "optimizer": variant(cell),
        "ours": plain(outcome.mean) if outcome.status == FINISHED else outcome.words(),
        "our_gap": plain(gap.mean if gap else None),
        "n": gap.n if gap else outcome.n,
        "ci_low": plain(ends[0]),
        "ci_high": plain(ends[1]),
        "verdict": verdict,
    }


def losses(
    name: str, evidence: Evidence, beyond: Sequence[str] = ()
) -> tuple[list[str], dict[str, list[Row | None]]]:
    """Return the columns of one of the paper's tables, and its rows by model.

    Args:
        name: the table.
        evidence: the profile's runs.
        beyond: sweeps whose runs stand beside the paper's columns, once there are any.

    Returns:
        The optimizers' labels, and for each model one row a label; None where nothing is planned.
    """
    cells = list(evidence.source(SWEEPS[name]).cells)
    for sweep in beyond:
        cells += [cell for cell in evidence.source(sweep).cells if cell.runs]
    labels = {variant(cell): variant_label(cell) for cell in cells}
    columns = TABLES[name].columns
    order = sorted(labels, key=lambda n: columns.index(n) if n in columns else len(columns))
    found = {}
    for model in dict.fromkeys(cell.model for cell in cells):
        by_name = {variant(cell): cell for cell in reversed(cells) if cell.model == model}
        best = clear_best(list(by_name.values())) if evidence.profile != "tiny" else None
        found[model] = [
            _row(name, by_name[n], by_name.get("adamw"), best, evidence.profile)
            if n in by_name
            else None
            for n in order
        ]
    return [labels[n] for n in order], found


def _row(name: str, cell: Cell, reference: Cell | None, best: Cell | None, profile: str) -> Row:
    printed, adamw = (value(name, cell.model, column) for column in (cell.optimizer, "adamw"))
    paper = NOTHING if printed is None else f"{printed:.3f}"
    if name == "quant_valid" and variant(cell) in ("adamw_int8", "adamw_int8_released"):
        paper = COLLAPSES
    paper_gap = None if printed is None or adamw is None else round(printed - adamw, 6)
    if profile == "tiny":
        verdict = NO_VERDICT
    elif cell is reference:
        verdict = "reference"
    elif not cell.outcome.n:
        verdict = cell.outcome.status
    elif scaled_to(cell.config):
        verdict = ELSEWHERE
    elif paper_gap is not None:
        verdict = judge_cell(cell, reference, paper_gap)
    elif paper == COLLAPSES:
        verdict = judge_collapse(cell, reference)
    else:
        verdict = "not in the paper"
    gap = gap_of(cell, reference)
    return Row(cell, reference, paper, printed, paper_gap, gap, verdict, cell is best)
