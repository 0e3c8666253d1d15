"""All tables by name: the paper's, each number beside its own, and two beyond the paper."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.tuned import RATE_SWEEPS
from powerstep_repro.pages import losses
from powerstep_repro.pages import tables_of_settings as settings
from powerstep_repro.pages.arguments import writing
from powerstep_repro.pages.render import Table, write


@dataclass(frozen=True)
class TableSpec:
    """A table: the function that builds it, and the sweeps that fill it; none: it needs no run."""

    build: Callable[[Evidence], Table]
    sweeps: tuple[str, ...] = ()


def _losses(name: str, *beyond: str) -> TableSpec:
    return TableSpec(
        lambda evidence: losses.loss_table(name, evidence, beyond), (losses.SWEEPS[name],)
    )


_COSTED = ("small", "small_released", "quant", "quant_parts", "large", "stacey", "beta", "gamma")
_COSTED += ("lr", *RATE_SWEEPS)

CATALOGUE: dict[str, TableSpec] = {
    "memory": TableSpec(settings.memory),
    "hyperparameters": TableSpec(settings.hyperparameters),
    "parallelism": TableSpec(settings.parallelism),
    "valid_small": _losses("valid_small", "small_released"),
    "quant_valid": _losses("quant_valid", "quant_parts"),
    "valid_large": _losses("valid_large"),
    "lr_tuned": TableSpec(losses.lr_tuned, ("lr_tuned",)),
    "cost": TableSpec(lambda evidence: losses.cost(evidence, _COSTED), ("lr_tuned",)),
}


def build(name: str, evidence: Evidence) -> Table:
    """Build one table of the catalogue."""
    return CATALOGUE[name].build(evidence)


def save(name: str, evidence: Evidence) -> tuple[Table, list[Path]]:
    """Build one table and write its files; returns both."""
    table = build(name, evidence)
    table.name = evidence.file_name(name)
    with writing(evidence.folder):
        return table, write(table, evidence.folder / "tables")
