"""``python -m powerstep_repro.report``: one page of findings, figures and tables from the logs."""

from collections.abc import Sequence

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.pages import arguments, figures, style, tables
from powerstep_repro.pages.html import html
from powerstep_repro.pages.render import write_text
from powerstep_repro.pages.report import document


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the report shows, then write it as Markdown and as one HTML file."""
    parser = arguments.parser(
        "report",
        "",
        [],
        "Write <results_dir>/<profile>/REPORT.md and report.html (one file, works offline).",
    )
    every = (*figures.CATALOGUE.values(), *tables.CATALOGUE.values())
    sweeps = {"report": [sweep for spec in every for sweep in spec.sweeps]}
    _, evidence = arguments.read(parser.parse_args(argv).words, "", sweeps)
    folder = evidence.folder
    with arguments.writing(folder):
        for name in figures.drawable(evidence):
            drawn = figures.draw(name, evidence)
            style.save(drawn, folder / "figures" / evidence.file_name(name))
        text = document(evidence)
        pages = {
            folder / f"{evidence.file_name('REPORT')}.md": text,
            folder / f"{evidence.file_name('report')}.html": html(text, folder),
        }
        for path, page in pages.items():
            write_text(path, page)
    print(*(f"wrote {path}" for path in pages), sep="\n")
    return 0


if __name__ == "__main__":
    exit_on_user_error(main)
