"""A table, and how it is written: Markdown, CSV and LaTeX (booktabs)."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from powerstep_repro.evidence.words import NOTHING

#: Columns of every CSV, in this order; a table may add its own after them.
LONG = ("model", "optimizer", "paper", "ours", "paper_gap", "our_gap", "n", "ci_low", "ci_high")
LONG += ("verdict",)

_TEX = {character: f"\\{character}" for character in "&%$#_{}"}
_TEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {"−": "$-$", "±": r"$\pm$", "×": r"$\times$", "<": "$<$", ">": "$>$", "|": "$|$"}
_TEX |= {"β": r"$\beta$", "γ": r"$\gamma$", "η": r"$\eta$", "λ": r"$\lambda$"}
_TEX |= {"“": "``", "”": "''"}


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
    rows: list[list[Entry]] = field(default_factory=list)
    long: list[Mapping[str, object]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    extra: tuple[str, ...] = ()

    def add(self, *texts: str | Entry) -> None:
        """Append a row to the layout."""
        self.rows.append([t if isinstance(t, Entry) else Entry(t) for t in texts])

    def whole_rows(self) -> list[list[Entry]]:
        """Return the rows of full width, a heading in bold."""
        blanks = [Entry("")] * (len(self.header) - 1)
        return [[Entry(row[0].text, True), *blanks] if len(row) == 1 else row for row in self.rows]


def markdown(table: Table) -> str:
    """Return the table as GitHub-flavoured Markdown with its title and notes."""
    parts = [f"### {table.title}", table.subtitle, grid(table.header, table.whole_rows())]
    return "\n\n".join([*parts, *table.notes]) + "\n"


def grid(header: Sequence[str], rows: Sequence[Sequence[str | Entry]]) -> str:
    """Return the lines of a Markdown table."""
    lines = [[_md(head) for head in header], ["---"] * len(header)]
    lines += [[_md(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _md(cell: str | Entry) -> str:
    if isinstance(cell, str):
        return cell.replace("|", "\\|").replace("\n", " ")
    text = cell.text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
    return f"**{text}**" if cell.bold else text


def comma_separated(table: Table) -> str:
    """Return the long rows as CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, (*LONG, *table.extra), restval=NOTHING, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.long)
    return out.getvalue()


def latex(table: Table) -> str:
    """Return the table as LaTeX; needs the packages booktabs and graphicx."""
    frame = pd.DataFrame(
        [
            [f"\\textbf{{{tex(cell.text)}}}" if cell.bold else tex(cell.text) for cell in row]
            for row in table.whole_rows()
        ],
        columns=[tex(head) for head in table.header],
    )
    # LaTeX numbers its tables; the paper's number stands behind the title.
    number, _, title = table.title.partition(": ")
    title = f"{title} (the paper's {number})" if number.startswith("Table") else table.title
    text = frame.to_latex(
        index=False,
        escape=False,
        position="ht",
        caption=tex(f"{title}. {table.subtitle}"),
        label=f"tab:{table.name}",
        column_format="ll" + "c" * (len(table.header) - 2),
    )
    shrunk = "\\small\n\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
    text = text.replace("\\begin{tabular}", shrunk + "\\begin{tabular}")
    notes = "".join(f"\n\\par\\smallskip\\footnotesize {tex(note)}" for note in table.notes)
    return text.replace("\\end{tabular}", "\\end{tabular}}" + notes)


def tex(text: str) -> str:
    """Escape a text for LaTeX."""
    return "".join(_TEX.get(character, character) for character in text)


def write(table: Table, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.tex into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, render in (("md", markdown), ("csv", comma_separated), ("tex", latex)):
        path = folder / f"{table.name}.{suffix}"
        write_text(path, render(table))
        written.append(path)
    return written


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
