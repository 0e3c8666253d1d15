"""All tables by name: from a profile's runs to rows, each beside the paper's own number."""

from collections.abc import Callable
from dataclasses import dataclass

from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.tuned import RATE_SWEEPS
from powerstep_repro.pages import beyond, settings
from powerstep_repro.pages.losses import loss_table
from powerstep_repro.pages.memory import memory
from powerstep_repro.pages.model import Table


@dataclass(frozen=True)
class TableSpec:
    """A table: the sweeps that fill it, the function that builds it, whether it is of runs."""

    sweeps: tuple[str, ...]
    build: Callable[[Evidence], Table]
    reads_runs: bool = True


_COSTED = (
    "small",
    "small_released",
    "quant",
    "quant_parts",
    "large",
    "stacey",
    "beta",
    "gamma",
    "lr",
    *RATE_SWEEPS,
)

CATALOGUE: dict[str, TableSpec] = {
    "memory": TableSpec((), memory, reads_runs=False),
    "hyperparameters": TableSpec((), settings.hyperparameters, reads_runs=False),
    "parallelism": TableSpec((), settings.parallelism, reads_runs=False),
    "valid_small": TableSpec(
        ("small",), lambda evidence: loss_table("valid_small", evidence, ("small_released",))
    ),
    "quant_valid": TableSpec(
        ("quant",), lambda evidence: loss_table("quant_valid", evidence, ("quant_parts",))
    ),
    "valid_large": TableSpec(("large",), lambda evidence: loss_table("valid_large", evidence)),
    "lr_tuned": TableSpec(("lr_tuned",), beyond.lr_tuned),
    "cost": TableSpec((), lambda evidence: beyond.cost(evidence, _COSTED)),
}


def build(name: str, evidence: Evidence) -> Table:
    """Build one table of the catalogue."""
    return CATALOGUE[name].build(evidence)
