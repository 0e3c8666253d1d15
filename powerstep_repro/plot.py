"""``python -m powerstep_repro.plot NAME``: draw a figure of the paper from the logs."""

from collections.abc import Sequence

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.evidence.arguments import parse, print_missing
from powerstep_repro.figures import style
from powerstep_repro.figures.catalogue import CATALOGUE, draw


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures that the arguments name; what was not run is marked so, with its command."""
    names, evidence = parse(
        argv,
        "plot",
        "figure",
        list(CATALOGUE),
        "Draw figures to <results_dir>/<profile>/figures/NAME.pdf and .png.",
    )
    for name in names:
        figure = draw(name, evidence)
        for path in style.save(figure, evidence.folder / "figures" / name):
            print(f"wrote {path}")
        print_missing([evidence.source(sweep) for sweep in CATALOGUE[name].sweeps])
    return 0


if __name__ == "__main__":
    exit_on_user_error(main)
