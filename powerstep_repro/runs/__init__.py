"""What a run leaves behind, and how it is found again. Imports no torch."""

from powerstep_repro.runs.loading import Loaded, load
from powerstep_repro.runs.record import Recorder, blown_up_at, is_locked
from powerstep_repro.runs.selection import Cell, Selection, by_data_set, select

__all__ = [
    "Cell",
    "Loaded",
    "Recorder",
    "Selection",
    "blown_up_at",
    "by_data_set",
    "is_locked",
    "load",
    "select",
]
