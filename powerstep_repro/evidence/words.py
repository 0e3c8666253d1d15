"""How people are told of numbers and of cells: differences, sizes, rates, seeds, data sets."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from powerstep_repro.config import groups_label
from powerstep_repro.evidence.memory import full_size
from powerstep_repro.paper import MODELS, model_label, optimizer_label
from powerstep_repro.runs import Cell

#: What stands where there is nothing to say: never a blank. pandas reads it as missing.
NOTHING = "n/a"
#: What stands in the verdict's place where the profile is too small for one.
NO_VERDICT = "no verdict"


def signed(value: float | None, digits: int = 3) -> str:
    """Write a difference with its sign; one that rounds to nothing has none."""
    if value is None:
        return NOTHING
    rounded = round(value, digits) + 0.0
    return f"{rounded:+.{digits}f}" if rounded else f"{rounded:.{digits}f}"


def plain(value: float | None, digits: int = 6) -> str:
    """Write a number for a CSV: rounded, without trailing noise."""
    return NOTHING if value is None else f"{round(float(value), digits):.10g}"


def rate_label(lr: float) -> str:
    """Write a learning rate as people do: ``6e-4``, ``3.75e-5``."""
    mantissa, exponent = f"{lr:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def size_label(parameters: int) -> str:
    """Write a number of parameters in three digits: ``2.04B``, ``125k``."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{letter}"
    return str(parameters)


def sized_label(model: str, parameters: float | None) -> str:
    """Name a model for people, and its size unless that is the paper's or not known."""
    label = model_label(model)
    known = model in MODELS and parameters is not None and np.isfinite(parameters)
    if not known or parameters == full_size(model):
        return label
    return f"{label}, scaled to {size_label(int(parameters))} parameters"


def data_label(cells: Sequence[Cell]) -> str:
    """Name the data sets of cells that have runs, with their hashes."""
    seen = dict.fromkeys((c.data_name, c.data_hash) for c in cells if c.runs)
    return ", ".join(f"{name} ({digest})" for name, digest in seen) or "none yet"


def n_label(cells: Sequence[Cell]) -> str:
    """Say how many seeds the cells that were run have, and which if they were chosen."""
    counts = sorted({len(cell.runs) for cell in cells if cell.runs}) or [0]
    said = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    chosen = sorted({seed for cell in cells for seed in cell.seeds})
    if not chosen:
        return said
    return f"{said}, seed{'s' if len(chosen) > 1 else ''} {', '.join(map(str, chosen))} alone"


def codes_of(optimizer: Mapping[str, Any]) -> dict[str, str]:
    """Return the code of a quantized state, under "", or each moment's where one has its own."""
    code, m, v = (optimizer.get(key) for key in ("code", "code_m", "code_v"))
    if m or v:
        return {"m": m or code, "v": v or code}
    return {"": code} if code else {}


def variant(cell: Cell) -> str:
    """Name a cell's optimizer with what is not its default: a code, and other rules by kind."""
    codes = codes_of(cell.config["optimizer"])
    words = " ".join(f"{moment}={code}" if moment else code for moment, code in codes.items())
    code = "" if words in ("", "dynamic") else f" {words}"
    return cell.optimizer + code + groups_label(cell.config)


def variant_label(cell: Cell) -> str:
    """Write ``variant`` for people."""
    return optimizer_label(cell.optimizer) + variant(cell).removeprefix(cell.optimizer)
