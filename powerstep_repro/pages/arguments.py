"""The command line that ``plot``, ``table`` and ``report`` share."""

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from powerstep_repro.config import choices, read_path, suggestion
from powerstep_repro.errors import CommandParser, UserError
from powerstep_repro.evidence import Evidence
from powerstep_repro.evidence.sources import RESULTS

logger = logging.getLogger(__name__)

ALL = "all"


def parser(command: str, what: str, names: Sequence[str], writes: str) -> argparse.ArgumentParser:
    """Return the parser of ``NAME ... key=value ...``.

    Args:
        command: the module behind ``python -m powerstep_repro.``.
        what: what a NAME names, in one word; empty if the command takes none.
        names: the known names.
        writes: what is written where, for the help.
    """
    out = CommandParser(
        prog=f"python -m powerstep_repro.{command}",
        usage=f"%(prog)s {'NAME ... ' if what else ''}[profile=tiny] [results_dir=results] "
        "[key=value ...]",
        description=writes,
        epilog=(f"{what} names: {', '.join(names)}, or {ALL}. " if what else "")
        + "Further key=value apply to every run that is looked for, as on the sweep's command "
        "line, and name the file: small-model=gpt2_small.png; seed=1,2 leaves these replicates. "
        "Reads logs alone: no GPU, no data, no torch.",
    )
    out.add_argument("words", nargs="*", metavar="NAME or key=value")
    return out


def read(
    words: Sequence[str], what: str, names: Mapping[str, Sequence[str]]
) -> tuple[list[str], Evidence]:
    """Read the words of a command line.

    Args:
        words: names and ``key=value``.
        what: as in ``parser``.
        names: the known names, each with the sweeps that fill it; none: needs no run.

    Returns:
        The names asked for, and the evidence of the profile and results folder asked for.

    Raises:
        UserError: an unknown name, key or profile, with the nearest known one; a results folder
            that is not there, unless all that is asked for needs no run.
    """
    asked = [word for word in words if "=" not in word]
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    if what and not asked:
        raise UserError(f"name a {what}: {', '.join(names)}, or {ALL}")
    for word in asked:
        if not what:
            raise UserError(f"unexpected {word!r}: this command takes key=value only")
        _check(what, word, [*names, ALL])
    profile = pairs.pop("profile", "tiny")
    _check("profile", profile, choices("profile"))
    results_dir = read_path(pairs.pop("results_dir", str(RESULTS)))
    wanted = list(names) if ALL in asked or not what else list(dict.fromkeys(asked))
    evidence = Evidence(results_dir, profile, [f"{key}={value}" for key, value in pairs.items()])
    sweeps = list(dict.fromkeys(sweep for name in wanted for sweep in names[name]))
    evidence.check(sweeps)
    if sweeps and not Path(results_dir).is_dir():
        raise UserError(
            f"there is no folder {results_dir!r} to read runs from: results_dir is the folder "
            "that holds <profile>/runs"
        )
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    if sweeps and not (evidence.folder / "runs").is_dir():
        logger.warning("there is no folder %s: nothing was run", evidence.folder / "runs")
    return wanted, evidence


def _check(what: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        near = suggestion(word, list(known))
        raise UserError(f"unknown {what} {word!r}{near}: choose one of {', '.join(known)}")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write under a folder into a sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write under {folder}: {error}") from None


def print_missing(evidence: Evidence, sweeps: Sequence[str]) -> None:
    """Print, for each sweep with settings that were not run, the command that would run them."""
    for source in map(evidence.source, dict.fromkeys(sweeps)):
        command = source.missing_command()
        if command:
            missing = sum(cell.is_missing for cell in source.cells)
            print(f"not run: {missing} of {len(source.cells)} settings of sweep {source.sweep}")
            print(f"  {command}")
