"""What a run leaves behind, and how it is found again. Imports no torch."""

from powerstep_repro.runs.cells import Cell, Final, Outcome, select
from powerstep_repro.runs.load import Loaded, load
from powerstep_repro.runs.record import Recorder, blown_up_at, is_locked

__all__ = [
    "Cell",
    "Final",
    "Loaded",
    "Outcome",
    "Recorder",
    "blown_up_at",
    "is_locked",
    "load",
    "select",
]
