"""The command line that ``plot``, ``table`` and ``report`` share."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from powerstep_repro.config import choices, suggestion
from powerstep_repro.errors import CommandParser, UserError
from powerstep_repro.evidence.cells import RESULTS, Evidence, Source

logger = logging.getLogger(__name__)

ALL = "all"


def parse(
    argv: Sequence[str] | None,
    command: str,
    what: str,
    names: Mapping[str, Sequence[str] | None],
    writes: str,
) -> tuple[list[str], Evidence]:
    """Read ``NAME ... key=value ...``.

    Args:
        argv: the arguments; None takes the process's own.
        command: the module behind ``python -m powerstep_repro.``.
        what: what a NAME names, in one word; empty if the command takes none.
        names: the known names, each with the sweeps that fill it; None: needs no run. A command
            without names has its sweeps under its own.
        writes: what is written where, for the help.

    Returns:
        The names asked for, and the evidence of the profile and results folder asked for.

    Raises:
        UserError: an unknown name, key or profile, with the nearest known one; a results folder
            that is not there, unless all that is asked for needs no run.
    """
    parser = CommandParser(
        prog=f"python -m powerstep_repro.{command}",
        usage=f"%(prog)s {'NAME ... ' if what else ''}[profile=tiny] [results_dir=results] "
        "[key=value ...]",
        description=writes,
        epilog=(f"{what} names: {', '.join(names)}, or {ALL}. " if what else "")
        + "Further key=value apply to every run that is looked for, as on the sweep's command "
        "line, and name the file: small-model=gpt2_small.png; seed=1,2 leaves these replicates. "
        "Reads logs alone: no GPU, no data, no torch.",
    )
    parser.add_argument("words", nargs="*", metavar="NAME or key=value")
    words = parser.parse_args(argv).words
    asked = [word for word in words if "=" not in word]
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    if asked and not what:
        raise UserError(f"unexpected {asked[0]!r}: {command} takes key=value only")
    if what and not asked:
        raise UserError(f"name a {what}: {', '.join(names)}, or {ALL}")
    for word in asked:
        if word not in (*names, ALL):
            known = ", ".join(names)
            near = suggestion(word, list(names))
            raise UserError(f"unknown {what} {word!r}{near}: choose one of {known}, or {ALL}")
    profile = pairs.pop("profile", "tiny")
    if profile not in choices("profile"):
        known = choices("profile")
        near = suggestion(profile, known)
        raise UserError(f"unknown profile {profile!r}{near}: choose one of {', '.join(known)}")
    results_dir = pairs.pop("results_dir", str(RESULTS))
    wanted = list(names) if ALL in asked or not what else list(dict.fromkeys(asked))
    fill = [names[name] for name in wanted if names[name] is not None]
    reads_runs = bool(fill)
    evidence = Evidence(results_dir, profile, [f"{key}={value}" for key, value in pairs.items()])
    evidence.check(list(dict.fromkeys(sweep for sweeps in fill for sweep in sweeps)))
    if reads_runs and not Path(results_dir).is_dir():
        raise UserError(
            f"there is no folder {results_dir!r} to read runs from: results_dir is the folder "
            "that holds <profile>/runs"
        )
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    if reads_runs and not (evidence.folder / "runs").is_dir():
        logger.warning("there is no folder %s: nothing was run", evidence.folder / "runs")
    return wanted, evidence


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write under a folder into a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write under {folder}: {error}") from None


def print_missing(sources: Sequence[Source]) -> None:
    """Print, for each sweep with settings that were not run, the command that would run them."""
    for source in sources:
        command = source.missing_command()
        if command:
            missing = sum(cell.is_missing for cell in source.cells)
            print(f"not run: {missing} of {len(source.cells)} settings of sweep {source.sweep}")
            print(f"  {command}")
