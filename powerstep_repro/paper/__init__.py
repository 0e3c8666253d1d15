"""What the paper prints and claims, as data: its tables, its figures' layout, its claims.

Nothing here depends on a run. ``numbers`` holds every cell of the six tables, ``claims`` what the
text says together with what would confirm or refute it, ``layout`` the panels of the seven
figures, ``assumed`` what the LaTeX source leaves open and we had to choose. ``own_claims`` are not
the paper's but ours.
"""

from powerstep_repro.paper.assumed import ASSUMED, Assumption
from powerstep_repro.paper.claims import CLAIMS, INTERVAL, MARGIN, Claim
from powerstep_repro.paper.departures import DEPARTURES, RELEASED_AT, Departure
from powerstep_repro.paper.layout import FIGURES, PaperFigure
from powerstep_repro.paper.names import MODELS, OPTIMIZERS, model_label, optimizer_label
from powerstep_repro.paper.numbers import NUMBERS, TABLES, Number, PaperTable, table, value
from powerstep_repro.paper.own_claims import OWN_CLAIMS, OwnClaim

__all__ = [
    "ASSUMED",
    "CLAIMS",
    "DEPARTURES",
    "FIGURES",
    "INTERVAL",
    "MARGIN",
    "MODELS",
    "NUMBERS",
    "OPTIMIZERS",
    "OWN_CLAIMS",
    "RELEASED_AT",
    "TABLES",
    "Assumption",
    "Claim",
    "Departure",
    "Number",
    "OwnClaim",
    "PaperFigure",
    "PaperTable",
    "model_label",
    "optimizer_label",
    "table",
    "value",
]
