"""The three tables of validation losses: the paper's layout, each cell beside the paper's own."""

from collections.abc import Sequence

from powerstep_repro.evidence import (
    Cell,
    Evidence,
    Source,
    data_label,
    n_label,
    rate_label,
    size_label,
)
from powerstep_repro.evidence.compare import (
    MIXED,
    clear_best,
    gap_of,
    gap_words,
    interval_words,
    judge_cell,
    judge_collapse,
)
from powerstep_repro.evidence.labels import variant, variant_label
from powerstep_repro.evidence.statistics import ELSEWHERE, INCONCLUSIVE, Gap
from powerstep_repro.evidence.words import NO_VERDICT, NOTHING, signed
from powerstep_repro.pages.model import Entry, Table, plain
from powerstep_repro.paper import TABLES, model_label, value
from powerstep_repro.paper.claims import MARGIN

#: What the paper says in the place of a number.
COLLAPSES = "collapses"


def paper_cell(name: str, cell: Cell) -> tuple[float | None, str]:
    """Return the paper's value for a cell, and the text that stands for it."""
    number = value(name, cell.model, cell.optimizer)
    if number is not None:
        return number, f"{number:.3f}"
    if name == "quant_valid" and variant(cell) in ("adamw_int8", "adamw_int8_released"):
        return None, COLLAPSES
    return None, NOTHING


def loss_table(name: str, evidence: Evidence, beyond: Sequence[str] = ()) -> Table:
    """Build a table of final validation losses.

    Args:
        name: the paper's table.
        evidence: the profile's runs.
        beyond: sweeps whose runs stand beside the paper's columns, once there are any.
    """
    sweep = {"valid_small": "small", "quant_valid": "quant", "valid_large": "large"}[name]
    source = evidence.source(sweep)
    extras = [evidence.source(other) for other in beyond]
    cells = source.cells + [cell for extra in extras for cell in extra.cells if cell.runs]
    names = list(dict.fromkeys(variant(cell) for cell in cells))
    labels = {variant(cell): variant_label(cell) for cell in cells}
    spec = TABLES[name]
    names.sort(key=lambda n: spec.columns.index(n) if n in spec.columns else len(spec.columns))
    table = Table(
        name,
        f"Table {spec.number}: {spec.title}",
        f"Profile {evidence.profile}, data {data_label(cells)}, {n_label(cells)}.",
        ["Model", "", *(labels[n] for n in names)],
    )
    models = list(dict.fromkeys(cell.model for cell in cells))
    for model in models:
        by_name = {variant(cell): cell for cell in reversed(cells) if cell.model == model}
        _add_model(table, name, model, [by_name.get(n) for n in names], evidence.profile)
    table.notes = _notes(evidence, [source])
    return table


def _add_model(
    table: Table, name: str, model: str, cells: Sequence[Cell | None], profile: str
) -> None:
    there = [cell for cell in cells if cell is not None]
    reference = next((cell for cell in there if cell.optimizer == "adamw"), None)
    best = clear_best(there) if profile != "tiny" else None
    rows: dict[str, list[Entry]] = {}
    for cell in cells:
        column = _column(name, cell, reference, cell is not None and cell is best, profile)
        for head, entry in column.items():
            rows.setdefault(head, []).append(entry)
    heading = f"{model_label(model)}, lr {rate_label(there[0].config['lr'])}"
    if there[0].scaled_to:
        heading += f", scaled to {size_label(there[0].scaled_to)} parameters"
    table.add(heading)
    for head, entries in rows.items():
        table.add("", head, *entries)
    table.long += [_long(name, cell, reference, profile) for cell in there]


def _column(
    name: str, cell: Cell | None, reference: Cell | None, best: bool, profile: str
) -> dict[str, Entry]:
    heads = [
        "paper",
        "ours",
        "gap to AdamW, paper",
        "gap to AdamW, ours",
        "90 % interval",
    ]
    if profile == "paper":
        heads.insert(2, "ours − paper")
    if profile != "tiny":
        heads.append("verdict")
    if cell is None:
        return {head: Entry(NOTHING) for head in heads}
    paper, paper_text = paper_cell(name, cell)
    outcome = cell.outcome
    ours = outcome.words() + (f" (n={outcome.n})" if outcome.n else "")
    if outcome.blown_up:
        ours += f", blown up at step {min(outcome.blown_up.values()):,}"
    difference = None if paper is None or not outcome.finals else outcome.mean - paper
    gap = gap_of(cell, reference)
    texts = {
        "paper": Entry(paper_text),
        "ours": Entry(ours, best),
        "ours − paper": Entry(signed(difference)),
        "gap to AdamW, paper": Entry(signed(_paper_gap(name, cell))),
        "gap to AdamW, ours": Entry(
            signed(gap.mean) if gap and gap.has_interval else gap_words(gap, outcome.n)
        ),
        "90 % interval": Entry(interval_words(gap, outcome.n)),
        "verdict": Entry(_verdict(name, cell, reference)),
    }
    if cell is reference:
        named = ("gap to AdamW, ours", "90 % interval", "verdict")
        texts |= dict.fromkeys(named, Entry("reference"))
    return {head: texts[head] for head in heads}


def _paper_gap(name: str, cell: Cell) -> float | None:
    paper, reference = paper_cell(name, cell)[0], value(name, cell.model, "adamw")
    return None if paper is None or reference is None else round(paper - reference, 6)


def _verdict(name: str, cell: Cell, reference: Cell | None) -> str:
    if not cell.outcome.n:
        return cell.outcome.status
    if cell.scaled_to:
        return ELSEWHERE
    paper_gap = _paper_gap(name, cell)
    if paper_gap is not None:
        return judge_cell(cell, reference, paper_gap)
    if paper_cell(name, cell)[1] == COLLAPSES:
        return judge_collapse(cell, reference)
    return "not in the paper"


def _long(name: str, cell: Cell, reference: Cell | None, profile: str) -> dict[str, object]:
    outcome = cell.outcome
    gap: Gap | None = gap_of(cell, reference)
    is_reference = cell is reference
    row = {
        "model": cell.model,
        "optimizer": variant(cell),
        "paper": paper_cell(name, cell)[1],
        "ours": plain(outcome.mean) if outcome.status == "finished" else outcome.words(),
        "paper_gap": plain(_paper_gap(name, cell)),
        "our_gap": plain(gap.mean if gap else None),
        "n": gap.n if gap else outcome.n,
        "ci_low": plain(gap.low if gap and not is_reference else None),
        "ci_high": plain(gap.high if gap and not is_reference else None),
        "verdict": "reference" if is_reference else _verdict(name, cell, reference),
    }
    return row | ({"verdict": NO_VERDICT} if profile == "tiny" else {})


def _notes(evidence: Evidence, sources: Sequence[Source]) -> list[str]:
    if evidence.profile == "tiny":
        return [
            "Plumbing check: scaled-down models, a few hundred steps, learning rates of their own. "
            "No ranking here is evidence, and no verdict is given."
        ]
    notes = [
        f"Gap: final validation loss minus AdamW's, in nats a token, with its 90 % interval over "
        f"shared seeds and validation windows; none for n = 1, which is {INCONCLUSIVE}. A printed "
        f"gap within ±{MARGIN:g} is reproduced by an interval inside ±{MARGIN:g}, one beyond by "
        "an interval beyond on the same side. Bold: best and no tie. Blown up: after the warm-up "
        "a loss exceeded that of a uniform guess by more than a nat. " + MIXED
    ]
    if evidence.profile != "paper":
        notes.append(
            "Other data, other horizon than the paper's: its losses and ours cannot be compared, "
            "gaps to AdamW can."
        )
    commands = [source.missing_command() for source in sources]
    notes += [f"What was not run: {command}" for command in commands if command]
    return notes
