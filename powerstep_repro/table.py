"""``python -m powerstep_repro.table NAME``: write a table of the paper from the logs."""

from collections.abc import Sequence

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.pages.arguments import parse, print_missing, writing
from powerstep_repro.pages.render import markdown, write
from powerstep_repro.pages.tables import CATALOGUE, RATE_SWEEPS, build


def main(argv: Sequence[str] | None = None) -> int:
    """Write the tables that the arguments name, and print the one if it is one."""
    names, evidence = parse(
        argv,
        "table",
        "table",
        {
            name: spec.sweeps or RATE_SWEEPS if spec.reads_runs else None
            for name, spec in CATALOGUE.items()
        },
        "Write tables to <results_dir>/<profile>/tables/NAME.md, .csv and .tex.",
    )
    for name in names:
        table = build(name, evidence)
        table.name = evidence.file_name(name)
        with writing(evidence.folder):
            written = write(table, evidence.folder / "tables")
        if len(names) == 1:  # after it is written: the reader may be gone, as head is
            print(markdown(table))
        print(*(f"wrote {path}" for path in written), sep="\n")
        print_missing([evidence.source(sweep) for sweep in CATALOGUE[name].sweeps])
    return 0


if __name__ == "__main__":
    exit_on_user_error(main)
