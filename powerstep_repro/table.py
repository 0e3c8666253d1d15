"""``python -m powerstep_repro.table NAME``: write a table from the logs."""

from collections.abc import Sequence

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.pages import arguments
from powerstep_repro.pages.render import markdown
from powerstep_repro.pages.tables import CATALOGUE, save


def main(argv: Sequence[str] | None = None) -> int:
    """Write the tables that the arguments name, and print the one if it is one."""
    parser = arguments.parser(
        "table",
        "table",
        list(CATALOGUE),
        "Write tables to <results_dir>/<profile>/tables/NAME.md, .csv and .tex.",
    )
    sweeps = {name: spec.sweeps for name, spec in CATALOGUE.items()}
    names, evidence = arguments.read(parser.parse_args(argv).words, "table", sweeps)
    for name in names:
        table, written = save(name, evidence)
        if len(names) == 1:  # after it is written: the reader may be gone, as head is
            print(markdown(table))
        print(*(f"wrote {path}" for path in written), sep="\n")
    arguments.print_missing(evidence, [sweep for name in names for sweep in sweeps[name]])
    return 0


if __name__ == "__main__":
    exit_on_user_error(main)
