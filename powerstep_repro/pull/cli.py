"""The command line of ``python -m powerstep_repro.pull``."""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from powerstep_repro.config import (
    canonical,
    choices,
    flatten,
    run_dir,
    run_id,
    run_name,
    suggestion,
)
from powerstep_repro.errors import CommandParser, UserError
from powerstep_repro.pull.convert import convert, outcome
from powerstep_repro.pull.place import put, rows_in
from powerstep_repro.pull.remote import RemoteRun, runs_of
from powerstep_repro.runs.files import read_summary
from powerstep_repro.runs.load import check_config
from powerstep_repro.runs.record import is_locked

_FOLDER = re.compile(r"\w[\w.+-]*")

PULLED, KEPT, SKIPPED, FAILED = "pulled", "left alone", "skipped", "failed"

EPILOG = """\
Each run comes whole or not at all: its full history, counted against what the run logged. A run
directory that holds as many rows or more is left alone; checkpoints are never touched. Runs that
are not of this harness are skipped. Needs `wandb login` or WANDB_API_KEY, and wandb itself:
python -m pip install -e '.[wandb]'.

Exit code: 0 all that was asked for is there, 1 if a run could not be brought back whole.

examples:
  python -m powerstep_repro.pull my-team/powerstep-repro --dry-run
  python -m powerstep_repro.pull my-team/powerstep-repro --filter model.name=gpt2_small
  python -m powerstep_repro.pull my-team/powerstep-repro --profile h100 --group beta --limit 9
"""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    out = CommandParser(
        prog="python -m powerstep_repro.pull",
        description="Bring runs that logger=wandb mirrored back as run directories.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("project", metavar="ENTITY/PROJECT", help="the W&B project")
    out.add_argument(
        "--results-dir", default="results", help="runs go to <results-dir>/<profile>/runs"
    )
    out.add_argument("--profile", help="only runs of this profile")
    out.add_argument("--group", help="only runs of this W&B group")
    out.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs whose config has this value, e.g. optimizer.name=powerstep, or with this "
        "status; may be repeated, all must hold",
    )
    out.add_argument("--limit", type=int, metavar="N", help="only the N newest of these runs")
    out.add_argument("--overwrite", action="store_true", help="replace what is there already")
    out.add_argument("--dry-run", action="store_true", help="say what would be done, write nothing")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Pull what the arguments ask for; returns the exit code."""
    args = parser().parse_args(argv)
    if [bool(part) for part in args.project.split("/")] != [True, True]:
        raise UserError(f"{args.project!r} names no project: it must be ENTITY/PROJECT")
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit={args.limit}: it must be 1 or more")
    wanted = [_filter(text) for text in args.filter]
    if args.profile is not None:
        known = choices("profile")
        if args.profile not in known:
            near = suggestion(args.profile, known)
            raise UserError(
                f"unknown profile {args.profile!r}{near}: choose one of {', '.join(known)}"
            )
        wanted.append(("profile", args.profile))
    tally: Counter[str] = Counter()
    for remote in _matching(args, wanted, tally):
        tally[_pull(remote, args)] += 1
    if not tally.total() - tally[SKIPPED]:
        raise UserError(
            f"{args.project} has no run of this harness that matches what was asked for"
        )
    done = [f"{tally[what]} {what}" for what in (PULLED, KEPT, SKIPPED, FAILED) if tally[what]]
    print(", ".join(done) + (" (dry run: nothing was written)" if args.dry_run else ""))
    return 1 if tally[FAILED] else 0


def _filter(text: str) -> tuple[str, Any]:
    """Read ``KEY=VALUE``, the value a number, true, false or null if it reads as one, else text."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UserError(f"--filter {text!r}: it must be KEY=VALUE, e.g. optimizer.name=powerstep")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _matching(
    args: argparse.Namespace, wanted: list[tuple[str, Any]], tally: Counter[str]
) -> Iterator[RemoteRun]:
    """The runs asked for, the newest first; what is no run of ours is named and skipped."""
    count = 0
    for remote in runs_of(args.project, args.group):
        try:
            check_config(remote.config)
            name, profile = run_name(remote.config), remote.config["profile"]
            # They become folders, and may have been written by anybody.
            if not (_FOLDER.fullmatch(name) and _FOLDER.fullmatch(profile)):
                raise ValueError(f"{profile}/{name} is no folder's name")
        except (ValueError, TypeError, KeyError) as error:
            print(f"skipped {_title(remote)}: not a run of this harness ({error})")
            tally[SKIPPED] += 1
            continue
        values = dict(flatten(remote.config))
        values["status"] = _preview(remote).status
        if all(key in values and canonical(values[key]) == canonical(v) for key, v in wanted):
            yield remote
            count += 1
            if count == args.limit:
                return


def _title(remote: RemoteRun) -> str:
    return f"{remote.name} ({remote.path})"


def _preview(remote: RemoteRun) -> Any:
    """How the run stands, before its history is known; the summary knows the last step."""
    return outcome(remote, remote.summary.get("_step") or 0)


def _pull(remote: RemoteRun, args: argparse.Namespace) -> str:
    """Bring one run back, or say why not; returns what was done."""
    place = Path(run_dir({**remote.config, "results_dir": args.results_dir}))
    if remote.path.rpartition("/")[2] != run_id(remote.config) and remote.name != place.name:
        print(
            f"note: {_title(remote)} has a config that makes it {place.name}: it was changed in "
            "W&B, or recorded by another version"
        )
    there = rows_in(place)
    if is_locked(place):
        print(f"left alone {place}: a process is writing to it")
        return KEPT
    seen = _preview(remote)
    if not args.overwrite and _enough(place, there, remote, seen.status, seen.rows):
        print(f"left alone {place}: it holds {there} rows, W&B {seen.rows}")
        return KEPT
    if args.dry_run:
        rows = "unknown number of" if seen.rows is None else seen.rows
        print(f"would pull {place}: {seen.status}, {rows} rows")
        return PULLED
    try:
        pulled = convert(remote, remote.history())
        if not args.overwrite and _enough(place, there, remote, pulled.status, pulled.rows):
            print(f"left alone {place}: it holds {there} rows, W&B {pulled.rows}")
            return KEPT
        put(place, pulled)
    except (UserError, OSError) as error:
        print(f"error: {_title(remote)}: {error}; nothing of it is written", file=sys.stderr)
        return FAILED
    print(f"pulled {place}: {pulled.status}, {pulled.rows} rows")
    return PULLED


def _enough(
    place: Path, there: int | None, remote: RemoteRun, status: str, rows: int | None
) -> bool:
    """Whether what is there is as good as what W&B has."""
    if there is None or rows is None or there < rows:
        return False
    summary = read_summary(place)
    # Pulled from the same run before, which has ended since without another row.
    return summary.get("pulled_from") != remote.path or summary.get("status") == status
