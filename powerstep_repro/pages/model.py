"""What a table is before it is written: a layout like the paper's, and long rows for the CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from powerstep_repro.evidence.words import NOTHING

#: Columns of every CSV, in this order; a table may add its own after them.
LONG = (
    "model",
    "optimizer",
    "paper",
    "ours",
    "paper_gap",
    "our_gap",
    "n",
    "ci_low",
    "ci_high",
    "verdict",
)


@dataclass(frozen=True)
class Entry:
    """One cell of the layout."""

    text: str
    bold: bool = False


@dataclass
class Table:
    """One table.

    Attributes:
        name: the name of its files.
        title: its heading, with the paper's number where it has one.
        subtitle: profile, data set, n.
        header: the layout's column heads.
        rows: the layout's cells; a row of one entry is a heading within the table.
        long: rows for the CSV, by column; a missing column is ``n/a``.
        notes: sentences under the table.
        extra: columns of the CSV after the common ones.
    """

    name: str
    title: str
    subtitle: str
    header: Sequence[str]
    rows: list[Sequence[Entry]] = field(default_factory=list)
    long: list[Mapping[str, object]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    extra: tuple[str, ...] = ()

    def add(self, *texts: str | Entry) -> None:
        """Append a row to the layout."""
        self.rows.append([t if isinstance(t, Entry) else Entry(t) for t in texts])


def plain(value: float | None, digits: int = 6) -> str:
    """Write a number for the CSV: rounded, without trailing noise."""
    return NOTHING if value is None else f"{round(float(value), digits):.10g}"
