"""The tables of runs: the paper's three of validation losses, and two beyond the paper."""

from collections.abc import Iterable, Sequence

from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.compare import MIXED, clear_best, gap_words_beside
from powerstep_repro.evidence.losses import SWEEPS, Row, long_row, losses
from powerstep_repro.evidence.memory import scaled_to
from powerstep_repro.evidence.provenance import Cost, costs
from powerstep_repro.evidence.statistics import INCONCLUSIVE
from powerstep_repro.evidence.tuned import Tuned, training_gap, tuned
from powerstep_repro.evidence.words import (
    NO_VERDICT,
    NOTHING,
    data_label,
    n_label,
    plain,
    rate_label,
    signed,
    sized_label,
    variant,
    variant_label,
)
from powerstep_repro.pages.render import Entry, Table
from powerstep_repro.paper import TABLES
from powerstep_repro.paper.claims import MARGIN
from powerstep_repro.runs import Cell


def loss_table(name: str, evidence: Evidence, beyond: Sequence[str] = ()) -> Table:
    """Build one of the paper's tables of final validation losses.

    Args:
        name: the paper's table.
        evidence: the profile's runs.
        beyond: sweeps whose runs stand beside the paper's columns, once there are any.
    """
    labels, by_model = losses(name, evidence, beyond)
    rows = [row for rows in by_model.values() for row in rows if row is not None]
    spec, cells = TABLES[name], [row.cell for row in rows]
    table = Table(
        name,
        f"Table {spec.number}: {spec.title}",
        f"Profile {evidence.profile}, data {data_label(cells)}, {n_label(cells)}.",
        ["Model", "", *labels],
    )
    for model, own in by_model.items():
        config = next(row.cell.config for row in own if row is not None)
        table.add(f"{sized_label(model, scaled_to(config))}, lr {rate_label(config['lr'])}")
        columns = [_column(row, evidence.profile) for row in own]
        heads = max(columns, key=len)
        for head in heads:
            table.add("", head, *(column.get(head, Entry(NOTHING)) for column in columns))
    table.long = [row.long() for row in rows]
    table.notes = _notes(evidence)
    command = evidence.source(SWEEPS[name]).missing_command()
    if command and evidence.profile != "tiny":
        table.notes.append(f"What was not run: {command}")
    return table


def _column(row: Row | None, profile: str) -> dict[str, Entry]:
    """Lay out what one optimizer has under a model; nothing where none is planned."""
    if row is None:
        return {}
    entries = {"paper": Entry(row.paper), "ours": Entry(_ended(row.cell), row.best)}
    if profile == "paper":
        known = row.printed is not None and row.cell.outcome.finals
        difference = row.cell.outcome.mean - row.printed if known else None
        entries["ours − paper"] = Entry(signed(difference))
    entries["gap to AdamW, paper"] = Entry(signed(row.paper_gap))
    gap = "reference"
    if not row.is_reference:
        gap = gap_words_beside(row.gap, row.cell, row.reference) if row.gap else NOTHING
    entries["gap to AdamW, ours"] = Entry(gap)
    if profile != "tiny":
        entries["verdict"] = Entry(row.verdict)
    return entries


def _ended(cell: Cell) -> str:
    """Say how a cell's runs ended, and how many they are."""
    outcome = cell.outcome
    words = outcome.words() + (f" (n={outcome.n})" if outcome.n else "")
    if outcome.blown_up:
        words += f", blown up at step {min(outcome.blown_up.values()):,}"
    return words


def _notes(evidence: Evidence) -> list[str]:
    if evidence.profile == "tiny":
        return [
            "Plumbing check: scaled-down models, a few hundred steps, learning rates of their own. "
            "No ranking here is evidence, and no verdict is given."
        ]
    notes = [
        f"Gap: final validation loss minus AdamW's, in nats a token, with its 90 % interval over "
        f"shared seeds and validation windows; none for n = 1, which is {INCONCLUSIVE}. Where it "
        "is of fewer seeds than the losses above it, their means follow in brackets. A printed "
        f"gap within ±{MARGIN:g} is reproduced by an interval inside ±{MARGIN:g}, one beyond by "
        "an interval beyond on the same side. Bold: best and no tie. Blown up: after the warm-up "
        "a loss exceeded that of a uniform guess by more than a nat. " + MIXED
    ]
    if evidence.profile != "paper":
        notes.append(
            "Other data, other horizon than the paper's: its losses and ours cannot be compared, "
            "gaps to AdamW can."
        )
    return notes


def lr_tuned(evidence: Evidence) -> Table:
    """Build the table of each optimizer at its own best learning rate, GPT-2 Small."""
    at_best = tuned(evidence)
    adamw, cells = at_best["adamw"], [own.cell for own in at_best.values()]
    heads = ["Optimizer", "Best lr", "Validation loss at each rate run", "Best is on the edge"]
    heads += ["Validation loss", "Gap to AdamW at its best", "Steps to AdamW's final loss"]
    table = Table(
        "lr_tuned",
        "Beyond the paper: each optimizer at its own best learning rate, GPT-2-Small (124M)",
        f"Profile {evidence.profile}, data {data_label(cells)}, {n_label(cells)}.",
        [*heads, "Verdict on parity"],
        extra=("lr", "rates", "edge", "steps_to_adamw"),
    )
    evident = evidence.profile != "tiny"
    winner = clear_best(cells) if evident else None
    for own in at_best.values():
        cell, is_reference = own.cell, own is adamw
        if own.ended:
            lr, edge = rate_label(own.lr), own.edge or "no"
            rates = ", ".join(rate_label(c.config["lr"]) for c in own.ran)
            by_rate = ", ".join(
                f"{rate_label(c.config['lr'])}: {c.outcome.words()}" for c in own.ran
            )
        else:
            lr = edge = rates = by_rate = cell.outcome.words()
        gap = "reference" if is_reference else gap_words_beside(own.gap, cell, adamw.cell)
        verdict = own.verdict if evident else NO_VERDICT
        entry = Entry(_ended(cell), cell is winner)
        table.add(variant_label(cell), lr, by_rate, edge, entry, gap, own.steps_to, verdict)
        table.long.append(
            long_row(cell, own.gap, verdict, not is_reference)
            | {"lr": lr, "rates": rates, "edge": edge, "steps_to_adamw": own.steps_to}
        )
    table.notes = [
        "Best: lowest mean validation loss at the end among the rates that were run; a diverged "
        "run never wins. On an edge (lowest, highest, or the only rate run), a better rate may lie "
        "beyond, and parity stays inconclusive. Steps: the first whose smoothed training loss "
        "reaches AdamW's at the end of its best run, same seed where there is one. " + MIXED
    ]
    table.notes += _also(at_best["powerstep"], adamw)
    if not evident:
        table.notes.insert(0, "Plumbing check: no ranking here is evidence.")
    return table


def _also(ours: Tuned, adamw: Tuned) -> list[str]:
    """Say what else differs between PowerStep and AdamW where each is at its best."""
    gap = training_gap(ours, adamw)
    if gap is None:
        return []
    ratio = adamw.lr / ours.lr
    return [
        f"In smoothed training loss PowerStep ends {signed(gap)} from AdamW, both at their best; a "
        "log that sees its data more than once need not agree with the validation. A step decays "
        f"weights by η·λ, which is {ratio:.3g} times PowerStep's for AdamW at these rates."
    ]


def cost(evidence: Evidence, sweeps: Iterable[str]) -> Table:
    """Build the table of what each optimizer costs, from every run of the given sweeps."""
    heads = ["Model", "Optimizer", "Device", "Revision", "State (MiB)", "State (B/param)"]
    heads += ["Training step (ms)", "Optimizer alone (ms)", "Tokens/s", "Peak memory (GiB)"]
    table = Table(
        "cost",
        "Beyond the paper: what each optimizer costs",
        f"Profile {evidence.profile}; medians over runs, measured while training.",
        [*heads, "Device-hours", "Runs"],
        extra=("quantity", "device", "revision"),
    )
    rows = costs(evidence, sweeps)
    adamw = {(c.cell.model, c.device, c.revision): c for c in rows if variant(c.cell) == "adamw"}
    for row in rows:
        model = row.cell.model
        texts = [
            NOTHING if (number := getattr(row, name)) is None else format(number / unit, form)
            for name, (unit, form) in _QUANTITIES.items()
        ]
        label = sized_label(model, scaled_to(row.cell.config))
        named = [label, variant_label(row.cell), row.device, row.revision]
        table.add(*named, *texts, f"{row.runs}")
        base = adamw.get((model, row.device, row.revision))
        table.long += [_cost_row(row, base, name) for name in _QUANTITIES]
    if not rows:
        table.add("not run", *[NOTHING] * (len(table.header) - 1))
    table.notes = [
        "Training step and tokens/s are of whole steps (forward, backward, optimizer), the first "
        "tenth of each log left out; a row's runs share device and revision of this project, since "
        "either changes a step's time. Optimizer alone: the fastest implementation in the "
        "benchmark on the same device, where it was run. Device-hours: wall-clock time × devices, "
        "over all runs of the row."
    ]
    return table


# What is shown of a Cost: its unit in the layout, and how it is written there.
_QUANTITIES = {
    "state_bytes": (2**20, ".1f"),
    "bytes_per_param": (1, ".3f"),
    "step_ms": (1, ",.1f"),
    "optimizer_ms": (1, ",.3f"),
    "tokens_per_s": (1, ",.0f"),
    "peak_memory_bytes": (2**30, ".2f"),
    "device_hours": (1, ".3f"),
}


def _cost_row(row: Cost, base: Cost | None, quantity: str) -> dict[str, object]:
    number = getattr(row, quantity)
    reference = getattr(base, quantity) if base else None
    known = number is not None and reference is not None
    return {
        "model": row.cell.model,
        "optimizer": variant(row.cell),
        "ours": plain(number),
        "our_gap": plain(number - reference if known else None),
        "n": row.runs,
        "quantity": quantity,
        "device": row.device,
        "revision": row.revision,
    }
