"""Two tables beyond the paper: each optimizer at its own best rate, and what each costs."""

from collections.abc import Sequence

import numpy as np

from powerstep_repro.evidence import (
    Cell,
    Evidence,
    benchmarks,
    data_label,
    n_label,
    rate_label,
    sized_label,
    where_it_ran,
)
from powerstep_repro.evidence.compare import (
    MIXED,
    clear_best,
    gap_of,
    gap_words,
)
from powerstep_repro.evidence.curves import Strand, read_strand
from powerstep_repro.evidence.labels import variant, variant_label
from powerstep_repro.evidence.statistics import first_step_at_or_below
from powerstep_repro.evidence.tuned import judge_tuned, tuned_cells
from powerstep_repro.evidence.words import NO_VERDICT, NOTHING
from powerstep_repro.pages.model import Entry, Table, plain
from powerstep_repro.paper import MODELS, OPTIMIZERS
from powerstep_repro.utilisation import settled

#: The paper claims parity at its own rate for PowerStep alone.
NO_CLAIM = "no claim"


def lr_tuned(evidence: Evidence) -> Table:
    """Build the table of each optimizer at its own best learning rate, GPT-2 Small."""
    tuned = tuned_cells(evidence)
    cells = [cell for _, cell, _ in tuned.values()]
    reference_best, reference, _ = tuned["adamw"]
    targets = _ends(reference) if reference_best else {}
    table = Table(
        "lr_tuned",
        "Beyond the paper: each optimizer at its own best learning rate, GPT-2-Small (124M)",
        f"Profile {evidence.profile}, data {data_label(cells)}, {n_label(cells)}.",
        [
            "Optimizer",
            "Best lr",
            "Validation loss at each rate run",
            "Best is on the edge",
            "Validation loss",
            "Gap to AdamW at its best",
            "Steps to AdamW's final loss",
            "Verdict on parity",
        ],
        extra=("lr", "rates", "edge", "steps_to_adamw"),
    )
    evident = evidence.profile != "tiny"
    winner = clear_best(cells) if evident else None
    for name, (best, cell, ran) in tuned.items():
        is_reference = name == "adamw"
        gap = gap_of(cell, reference)
        verdict = NO_CLAIM
        if is_reference:
            verdict = "reference"
        elif cell.optimizer.startswith("powerstep"):
            verdict = judge_tuned(tuned[name], tuned["adamw"]) if best else cell.outcome.status
        outcome = cell.outcome
        why_not = outcome.words()
        steps = _steps_to(cell, targets) if best else why_not
        rates = ", ".join(map(rate_label, best.rates)) if best else why_not
        edge = (best.edge or "no") if best else why_not
        lr = rate_label(best.lr) if best else why_not
        words = outcome.words() + (f" (n={outcome.n})" if outcome.n else "")
        gap_text = "reference" if is_reference else gap_words(gap, outcome.n)
        shown = verdict if evident else NO_VERDICT
        entry = Entry(words, cell is winner)
        by_rate = [f"{rate_label(c.config['lr'])}: {c.outcome.words()}" for c in ran]
        losses = ", ".join(by_rate) if best else why_not
        table.add(variant_label(cell), lr, losses, edge, entry, gap_text, steps, shown)
        table.long.append(
            {
                "model": cell.model,
                "optimizer": name,
                "ours": plain(outcome.mean) if outcome.status == "finished" else outcome.words(),
                "our_gap": plain(gap.mean if gap else None),
                "n": gap.n if gap else outcome.n,
                "ci_low": plain(gap.low if gap and not is_reference else None),
                "ci_high": plain(gap.high if gap and not is_reference else None),
                "verdict": shown,
                "lr": lr,
                "rates": rates,
                "edge": edge,
                "steps_to_adamw": steps,
            }
        )
    table.notes = [
        "Best: lowest mean validation loss at the end among the rates that were run; a diverged "
        "run never wins. On an edge (lowest, highest, or the only rate run), a better rate may lie "
        "beyond, and parity stays inconclusive. Steps: the first whose smoothed training loss "
        "reaches AdamW's at the end of its best run, same seed where there is one. " + MIXED
    ]
    if not evident:
        table.notes.insert(0, "Plumbing check: no ranking here is evidence.")
    return table


def _smoothed(cell: Cell) -> dict[int, Strand]:
    """The smoothed training loss of a cell's finished runs, by seed."""
    facts = cell.loaded.runs
    finished = [run for run in cell.runs if facts.at[run, "status"] == "finished"]
    strands = {int(facts.at[r, "seed"]): read_strand(cell, r) for r in finished}
    return {seed: s for seed, s in strands.items() if len(s.steps) and s.status == "finished"}


def _ends(cell: Cell) -> dict[int, float]:
    return {seed: float(strand.smooth[-1]) for seed, strand in _smoothed(cell).items()}


def _steps_to(cell: Cell, targets: dict[int, float]) -> str:
    """Mean over seeds of the first step at or below AdamW's end, of the same seed if it has it."""
    strands = _smoothed(cell)
    if not targets or not strands:
        return NOTHING
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


def cost(evidence: Evidence, sweeps: Sequence[str]) -> Table:
    """Build the table of what each optimizer costs, from every run of the given sweeps."""
    cells: dict[tuple, Cell] = {}
    for sweep in sweeps:
        for cell in evidence.source(sweep).cells:
            for run in cell.runs:
                cells.setdefault((cell.model, variant(cell), run), cell)
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for model, name, run in cells:
        groups.setdefault((model, name, *where_it_ran(evidence.loaded, run)), []).append(run)
    table = Table(
        "cost",
        "Beyond the paper: what each optimizer costs",
        f"Profile {evidence.profile}; medians over runs, measured while training.",
        [
            "Model",
            "Optimizer",
            "Device",
            "Revision",
            "State (MiB)",
            "State (B/param)",
            "Training step (ms)",
            "Optimizer alone (ms)",
            "Tokens/s",
            "Peak memory (GiB)",
            "Device-hours",
            "Runs",
        ],
        extra=("quantity", "device", "revision"),
    )
    by_cell = {(model, name): cell for (model, name, _), cell in cells.items()}
    alone = benchmarks.step_ms(benchmarks.read(evidence))

    def place(key: tuple[str, str, str, str]) -> tuple[int, int, tuple]:
        """Models and optimizers as the paper lists them, others after them."""
        model, name = key[:2]
        listed = (model, MODELS), (by_cell[model, name].optimizer, OPTIMIZERS)
        a, b = ([*names, own].index(own) for own, names in listed)
        return a, b, key

    speeds = {
        key: _cost(evidence, groups[key], alone.get(key[:3])) for key in sorted(groups, key=place)
    }
    for key, facts in speeds.items():
        model, name, device, revision = key
        count = len(groups[key])
        label = variant_label(by_cell[model, name])
        sized = sized_label(model, by_cell[model, name].scaled_to)
        table.add(sized, label, device, revision, *facts["texts"], f"{count}")
        base = speeds.get((model, "adamw", device, revision))
        for quantity, number in facts["numbers"].items():
            reference = base["numbers"][quantity] if base else None
            known = number is not None and reference is not None
            table.long.append(
                {
                    "model": model,
                    "optimizer": name,
                    "ours": plain(number),
                    "our_gap": plain(number - reference if known else None),
                    "n": count,
                    "quantity": quantity,
                    "device": device,
                    "revision": revision,
                }
            )
    if not table.rows:
        table.add("not run", *[NOTHING] * 11)
    table.notes = [
        "Training step and tokens/s are of whole steps (forward, backward, optimizer), the first "
        "tenth of each log left out; a row's runs share device and revision of this project, since "
        "either changes a step's time. Optimizer alone: the fastest implementation in the "
        "benchmark on the same device, where it was run. Device-hours: wall-clock time × devices, "
        "over all runs of the row."
    ]
    return table


def _cost(evidence: Evidence, runs: Sequence[str], alone: float | None) -> dict:
    facts = evidence.loaded.runs.loc[list(runs)]
    step_ms, speed = [], []
    for run in runs:
        log = evidence.loaded.history(run, columns=["step_ms", "tokens_per_s"])
        medians = settled(log).astype(float).median()
        step_ms.append(medians["step_ms"])
        speed.append(medians["tokens_per_s"])
    world = facts.get("world_size", 1)
    seconds = (facts["wall_s"].astype(float) * world).sum()
    state, peak = _median(facts["optimizer_state_bytes"]), _median(facts["peak_memory_bytes"])
    params = _median(facts["n_params"])
    numbers = {
        "state_bytes": state,
        "bytes_per_param": state / params if state is not None and params else None,
        "step_ms": _median(step_ms),
        "optimizer_ms": alone,
        "tokens_per_s": _median(speed),
        "peak_memory_bytes": peak,
        "device_hours": float(seconds) / 3600,
    }
    texts = [
        _scaled(state, 2**20, ".1f"),
        _scaled(numbers["bytes_per_param"], 1, ".3f"),
        _scaled(numbers["step_ms"], 1, ",.1f"),
        _scaled(alone, 1, ",.3f"),
        _scaled(numbers["tokens_per_s"], 1, ",.0f"),
        _scaled(peak, 2**30, ".2f"),
        f"{numbers['device_hours']:.3f}",
    ]
    return {"numbers": numbers, "texts": texts}


def _median(values) -> float | None:
    array = np.asarray([v for v in values if v is not None], dtype=float)
    array = array[np.isfinite(array)]
    return float(np.median(array)) if len(array) else None


def _scaled(number: float | None, unit: float, form: str) -> str:
    return NOTHING if number is None else format(number / unit, form)
