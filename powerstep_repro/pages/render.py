"""A table as Markdown, CSV and LaTeX (booktabs), written whole or not at all."""

import csv
import io
import os
from pathlib import Path

from powerstep_repro.evidence.words import NOTHING
from powerstep_repro.pages.model import LONG, Entry, Table

_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": r"$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "·": r"$\cdot$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "η": r"$\eta$",
    "λ": r"$\lambda$",
    "ε": r"$\epsilon$",
    "τ": r"$\tau$",
    "α": r"$\alpha$",
    "Φ": r"$\Phi$",
    "→": r"$\to$",
    "“": "``",
    "”": "''",
    "’": "'",
}


def markdown(table: Table) -> str:
    """Return the table as GitHub-flavoured Markdown with its title and notes."""
    lines = [f"### {table.title}", "", table.subtitle, ""]
    lines += markdown_rows(table)
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def markdown_rows(table: Table) -> list[str]:
    """Return the lines of the Markdown table alone."""
    width = len(table.header)
    lines = ["| " + " | ".join(_md(Entry(h)) for h in table.header) + " |", "|---" * width + "|"]
    for row in table.rows:
        cells = [_md(entry) for entry in row] + [""] * (width - len(row))
        if len(row) == 1:
            cells[0] = f"**{cells[0]}**"
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _md(entry: Entry) -> str:
    text = entry.text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
    return f"**{text}**" if entry.bold else text


def comma_separated(table: Table) -> str:
    """Return the long rows as CSV."""
    columns = (*LONG, *table.extra)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in table.long:
        writer.writerow([row.get(column, NOTHING) for column in columns])
    return out.getvalue()


def latex(table: Table) -> str:
    """Return the table as LaTeX; needs the packages booktabs and graphicx."""
    width = len(table.header)
    lines = [
        r"\begin{table}[ht]",
        r"  \centering",
        r"  \small",
        f"  \\caption{{{tex(_caption(table))}}}",
        f"  \\label{{tab:{table.name}}}",
        r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        f"  \\begin{{tabular}}{{{'l' * min(width, 2) + 'c' * (width - 2)}}}",
        r"    \toprule",
        "    " + " & ".join(tex(head) for head in table.header) + r" \\",
        r"    \midrule",
    ]
    for row in table.rows:
        if len(row) == 1:
            lines.append(r"    \addlinespace")
            lines.append(
                f"    \\multicolumn{{{width}}}{{l}}{{\\textbf{{{tex(row[0].text)}}}}} \\\\"
            )
            continue
        cells = [f"\\textbf{{{tex(e.text)}}}" if e.bold else tex(e.text) for e in row]
        lines.append("    " + " & ".join(cells + [""] * (width - len(cells))) + r" \\")
    lines += [r"    \bottomrule", r"  \end{tabular}}", ""]
    lines += [f"  \\par\\smallskip\\footnotesize {tex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _caption(table: Table) -> str:
    """The heading without its number, which LaTeX gives; the paper's number stands behind it."""
    number, _, title = table.title.partition(": ")
    title = f"{title} (the paper's {number})" if number.startswith("Table") else table.title
    return f"{title}. {table.subtitle}"


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
