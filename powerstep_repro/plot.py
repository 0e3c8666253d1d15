"""``python -m powerstep_repro.plot NAME``: draw a figure of the paper from the logs."""

from collections.abc import Sequence

from powerstep_repro.errors import exit_on_user_error
from powerstep_repro.pages import style
from powerstep_repro.pages.arguments import parse, print_missing, writing
from powerstep_repro.pages.figures import CATALOGUE, draw


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figures that the arguments name; what was not run is marked so, with its command."""
    names, evidence = parse(
        argv,
        "plot",
        "figure",
        {name: spec.sweeps or None for name, spec in CATALOGUE.items()},
        "Draw figures to <results_dir>/<profile>/figures/NAME.pdf and .png.",
    )
    for name in names:
        figure = draw(name, evidence)
        with writing(evidence.folder):
            written = style.save(figure, evidence.folder / "figures" / evidence.file_name(name))
        print(*(f"wrote {path}" for path in written), sep="\n")
        print_missing([evidence.source(sweep) for sweep in CATALOGUE[name].sweeps])
    return 0


if __name__ == "__main__":
    exit_on_user_error(main)
