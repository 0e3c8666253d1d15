"""``python -m powerstep_repro.report``: one page of findings, figures and tables from the logs."""

from collections.abc import Sequence

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.pages import style
from powerstep_repro.pages.arguments import parse, writing
from powerstep_repro.pages.figures import CATALOGUE as FIGURES
from powerstep_repro.pages.figures import draw
from powerstep_repro.pages.html import html
from powerstep_repro.pages.render import write_text
from powerstep_repro.pages.report import document, drawable
from powerstep_repro.pages.tables import CATALOGUE as TABLES


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
