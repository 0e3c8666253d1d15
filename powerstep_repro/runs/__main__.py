"""``python -m powerstep_repro.runs import``: runs trained on another machine become evidence."""

import argparse
from collections.abc import Sequence

from powerstep_repro.errors import CommandParser, exit_on_user_error
from powerstep_repro.runs import bring

EPILOG = """\
The machine that trains needs no history: POWERSTEP_REPRO_REVISION=$(git rev-parse HEAD) in its
environment is recorded as the runs' revision. There: tar -czf runs.tgz results/h100/runs.

exit code: 0, or 1 if a run was refused or the folder is over the limit
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand; returns its exit code."""
    parser = CommandParser(prog="python -m powerstep_repro.runs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="import")
    importing = commands.add_parser(
        "import",
        help="bring runs of another machine into results/",
        description=bring.__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bring.add_arguments(importing)
    return bring.run(parser.parse_args(argv))


if __name__ == "__main__":
    exit_on_user_error(main)
