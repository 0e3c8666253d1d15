"""``python -m powerstep_repro.report``: one page of findings, figures and tables from the logs."""

from collections.abc import Sequence

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.evidence.arguments import parse, writing
from powerstep_repro.figures import style
from powerstep_repro.figures.catalogue import CATALOGUE as FIGURES
from powerstep_repro.figures.catalogue import draw
from powerstep_repro.report.document import document, drawable
from powerstep_repro.report.page import html
from powerstep_repro.tables.catalogue import CATALOGUE as TABLES
from powerstep_repro.tables.render import write_text


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the report shows, then write it as Markdown and as one HTML file."""
    _, evidence = parse(
        argv,
        "report",
        "",
        {"report": [s for spec in (*FIGURES.values(), *TABLES.values()) for s in spec.sweeps]},
        "Write <results_dir>/<profile>/REPORT.md and report.html (one file, works offline).",
    )
    folder = evidence.folder
    with writing(folder):
        for name in drawable(evidence):
            style.save(draw(name, evidence), folder / "figures" / evidence.file_name(name))
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
