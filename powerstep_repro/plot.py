"""``python -m powerstep_repro.plot NAME``: draw a figure from the logs."""

from collections.abc import Sequence

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.pages import arguments, style, tables
from powerstep_repro.pages.figures import CATALOGUE, draw

NOT_ALL_RUN = 3  # exit code of --if-complete: some runs have not ended


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures that the arguments name; what was not run is marked so, with its command."""
    parser = arguments.parser(
        "plot",
        "figure",
        list(CATALOGUE),
        "Draw figures to <results_dir>/<profile>/figures/NAME.pdf and .png.",
    )
    parser.add_argument(
        "--table", action="append", default=[], choices=list(tables.CATALOGUE), metavar="NAME",
        help="write this table too, in the same process",
    )  # fmt: skip
    parser.add_argument(
        "--if-complete", action="store_true",
        help=f"draw nothing, and end with exit code {NOT_ALL_RUN}, if a run has not ended",
    )  # fmt: skip
    given = parser.parse_intermixed_args(argv)
    sweeps = {name: spec.sweeps for name, spec in CATALOGUE.items()}
    names, evidence = arguments.read(given.words, "figure", sweeps)
    if given.if_complete:
        for sweep in dict.fromkeys(sweep for name in names for sweep in sweeps[name]):
            cells = evidence.source(sweep).cells
            ended = sum(cell.has_ended for cell in cells)
            print(f"{sweep}: {ended} of {len(cells)} settings were run")
            if ended < len(cells):
                return NOT_ALL_RUN
    for name in names:
        figure = draw(name, evidence)
        with arguments.writing(evidence.folder):
            written = style.save(figure, evidence.folder / "figures" / evidence.file_name(name))
        print(*(f"wrote {path}" for path in written), sep="\n")
    arguments.print_missing(evidence, [sweep for name in names for sweep in sweeps[name]])
    for name in given.table:
        print(*(f"wrote {path}" for path in tables.save(name, evidence)[1]), sep="\n")
    return 0


if __name__ == "__main__":
    exit_on_user_error(main)
