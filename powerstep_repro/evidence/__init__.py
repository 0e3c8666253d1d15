"""What figures, tables and the report are made from: the runs of each sweep in one profile."""

from powerstep_repro.evidence.cells import (
    Cell,
    Evidence,
    Outcome,
    Source,
    hyperparameters,
    where_it_ran,
)
from powerstep_repro.evidence.labels import (
    data_label,
    n_label,
    rate_label,
    size_label,
    sized_label,
)

__all__ = [
    "Cell",
    "Evidence",
    "Outcome",
    "Source",
    "data_label",
    "hyperparameters",
    "n_label",
    "rate_label",
    "size_label",
    "sized_label",
    "where_it_ran",
]
