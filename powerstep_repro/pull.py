"""Bring runs that were mirrored to W&B back: ``python -m powerstep_repro.pull ENTITY/PROJECT``.

What comes back: the config, every row, the summary, and the last evaluation's loss per validation
window. The history is scanned in full (never sampled), and its rows are counted against what the
run says it logged or, where it could not say, against the lines that W&B says it received.
"""

import argparse
import inspect
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import yaml

from powerstep_repro.config import canonical, choices, flatten, run_dir, run_name
from powerstep_repro.config.identity import ADDED
from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error, require
from powerstep_repro.runs.files import (
    CONFIG,
    ENDED,
    ERROR,
    METRICS,
    PARQUET,
    SUMMARY,
    WINDOWS,
    read_summary,
    write_parquet,
    write_whole,
)
from powerstep_repro.runs.load import check_config
from powerstep_repro.runs.record import is_locked

PULLED, KEPT, SKIPPED, FAILED = "pulled", "left alone", "skipped", "failed"
# W&B gives numbers that JSON lacks as these words.
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# The trainer's order; W&B keeps none.
_ORDER = ("step", "tokens", "train_loss", "lr", "grad_norm", "step_ms", "tokens_per_s", "val_loss")
_WHOLE = ("step", "tokens")
# Entries of the summary that say how an attempt ended.
_RESULTS = ("final_val_loss", "final_train_loss", "diverged_at", "blown_up_at", "error")
# Entries that the mirror adds for a pull, and that are no part of summary.json.
_MIRRORED = ("rows", "windows")

EPILOG = """\
A run directory that holds as many rows or more is left alone; checkpoints are never touched. Runs
that are not of this harness are skipped. Needs `wandb login` or WANDB_API_KEY, and wandb itself:
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
    profiles = choices("profile")
    out.add_argument("--profile", choices=profiles, help="only runs of this profile")
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
    """Pull what the arguments ask for; return the exit code."""
    args = parser().parse_args(argv)
    if [bool(part) for part in args.project.split("/")] != [True, True]:
        raise UserError(f"{args.project!r} names no project: it must be ENTITY/PROJECT")
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit={args.limit}: it must be 1 or more")
    wanted = [_filter(text) for text in args.filter]
    if args.profile is not None:
        wanted.append(("profile", args.profile))
    tally: Counter[str] = Counter()
    for run, config in _matching(args, wanted, tally):
        tally[_pull(run, config, args)] += 1
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
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield W&B's runs that were asked for with their configs, the newest first.

    What is no run of ours is named and skipped.
    """
    count = 0
    for run in _runs(args.project, args.group):
        # W&B drops sections that are empty.
        config = {key: {} for key, value in ADDED.items() if value == {}} | dict(run.config)
        try:
            check_config(config)
            # They become folders, and may have been written by anybody.
            for name in (config["profile"], run_name(config)):
                if not re.fullmatch(r"\w[\w.+-]*", name):
                    raise ValueError(f"{name} is no folder's name")
        except (ValueError, TypeError, KeyError) as error:
            print(f"skipped {_title(run)}: not a run of this harness ({error})")
            tally[SKIPPED] += 1
            continue
        values = dict(flatten(config)) | {"status": outcome(run).status}
        if all(key in values and canonical(values[key]) == canonical(v) for key, v in wanted):
            yield run, config
            count += 1
            if count == args.limit:
                return


def _runs(project: str, group: str | None) -> Iterator[Any]:
    require("wandb", "pull", "wandb")
    import wandb

    try:
        api = wandb.Api()
    except (Exception, SystemExit) as error:  # it exits where a login is refused
        raise UserError(
            f"no access to W&B ({_reason(error)}): log in with `wandb login` or WANDB_API_KEY, "
            "and see that the network reaches it"
        ) from error
    filters = {} if group is None else {"group": group}
    try:
        yield from api.runs(project, filters, order="-created_at", **_known(api.runs, lazy=False))
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"W&B does not list the runs of {project} ({_reason(error)}): "
            "see that ENTITY/PROJECT is right and that this login may read it"
        ) from error


def _known(function: Callable, **options: Any) -> dict[str, Any]:
    """Those of the options that this version of wandb has."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in parameters}


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _title(run: Any) -> str:
    return f"{run.name or run.id} ({'/'.join(run.path)})"


class Outcome(NamedTuple):
    """How a run stands."""

    status: str  # as in summary.json
    # The run said so itself, so that its summary describes all of it. Else it still runs, was
    # killed, or lost its connection: an earlier attempt may have left the summary.
    closed: bool
    rows: int | None  # how many there must be; None: nobody says


def outcome(run: Any, last_step: int | None = None) -> Outcome:
    """Tell how a run stands from what W&B says and what the run said.

    Args:
        run: W&B's run: its ``state`` (running, pending, finished, failed, crashed, killed or
            preempted), its ``summary_metrics``, and how many history lines W&B has received.
        last_step: The last step of its history; None, before that is known: what W&B's summary
            says.
    """
    said = dict(run.summary_metrics)
    received = getattr(run, "historyLineCount", None)
    if last_step is None:
        last_step = said.get("_step") or 0
    ended = run.state in ("finished", "failed")
    # Not seen to end, but nothing came after its last word.
    ended |= run.state != "running" and last_step <= (said.get("steps") or 0)
    if ended and said.get("status") in (*ENDED, "failed", "interrupted"):
        rows = said.get("rows")
        return Outcome(said["status"], True, received if rows is None else rows)
    states = {"running": "running", "pending": "running", "failed": "failed"}
    return Outcome(states.get(run.state, "interrupted"), False, received)


def _pull(run: Any, config: dict[str, Any], args: argparse.Namespace) -> str:
    """Bring one run back, or say why not; return what was done."""
    place = Path(run_dir({**config, "results_dir": args.results_dir}))
    there = _rows_in(place)
    if is_locked(place):
        print(f"left alone {place}: a process is writing to it")
        return KEPT
    seen = outcome(run)
    if not args.overwrite and _is_enough(place, there, run, seen):
        print(f"left alone {place}: it holds {there} rows, W&B {seen.rows}")
        return KEPT
    if args.dry_run:
        rows = "unknown number of" if seen.rows is None else seen.rows
        print(f"would pull {place}: {seen.status}, {rows} rows")
        return PULLED
    try:
        found, files = _convert(run, config)
        if not args.overwrite and _is_enough(place, there, run, found):  # W&B did not count
            print(f"left alone {place}: it holds {there} rows, W&B {found.rows}")
            return KEPT
        _put(place, found.status, files)
    except (UserError, OSError) as error:
        print(f"error: {_title(run)}: {error}", file=sys.stderr)
        return FAILED
    print(f"pulled {place}: {found.status}, {found.rows} rows")
    return PULLED


def _rows_in(place: Path) -> int:
    """Count the logged steps of a run directory; -1 if there is none that is whole."""
    if not (place / SUMMARY).is_file():
        return -1
    if (place / PARQUET).is_file():
        return pq.read_metadata(place / PARQUET).num_rows
    return (place / METRICS).read_bytes().count(b"\n") if (place / METRICS).is_file() else 0


def _is_enough(place: Path, there: int, run: Any, found: Outcome) -> bool:
    """Whether what is there is as good as what W&B has."""
    if found.rows is None or there < found.rows:
        return False
    summary = read_summary(place)
    # Pulled from the same run before, which has ended since without another row.
    return summary.get("pulled_from") != "/".join(run.path) or summary["status"] == found.status


def _convert(run: Any, config: dict[str, Any]) -> tuple[Outcome, dict[str, bytes]]:
    """Return how a run stands, with the number of its rows, and the contents of its files."""
    try:
        # The client's cache would hold on to what was exported before a run was resumed.
        scan = run.scan_history(**_known(run.scan_history, use_cache=False))
        history = [dict(row) for row in scan]
    except Exception as error:
        raise UserError(f"its history cannot be read ({_reason(error)})") from error
    # Of doubled steps the last counts.
    rows = {row["step"]: row for row in map(_row, history) if row is not None}
    found = outcome(run, max(rows, default=0))
    said = dict(run.summary_metrics)
    # The last value of each logged key stands in W&B's summary too.
    logged = {name for row in rows.values() for name in row}
    summary = {
        name: _plain(value)
        for name, value in said.items()
        if not name.startswith("_") and name not in logged and name not in _MIRRORED
    }
    windows = said.get("windows")
    if found.closed:
        # Beyond its last word lie rows of an attempt that was given up for an earlier checkpoint.
        rows = {step: row for step, row in rows.items() if step <= (summary.get("steps") or 0)}
    else:
        summary = {name: value for name, value in summary.items() if name not in _RESULTS}
        summary["steps"] = max(rows, default=0)
        windows = None
    counted = found.closed and "rows" in said
    count = len(rows) if counted else len(history)
    if found.rows is not None and count < found.rows:
        which = "that the run logged" if counted else "that it has received"
        raise UserError(
            f"W&B gave {count} of the {found.rows} rows {which}; nothing of it is written"
        )
    summary |= {"status": found.status, "pulled_from": "/".join(run.path)}
    files = {
        CONFIG: yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode(),
        METRICS: b"".join(json.dumps(rows[step]).encode() + b"\n" for step in sorted(rows)),
        SUMMARY: json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n",
    }
    if isinstance(windows, dict) and windows.get("losses"):
        # summary.json knows no NaN, so the mirror sent null.
        losses = [math.nan if loss is None else float(_number(loss)) for loss in windows["losses"]]
        files[WINDOWS] = json.dumps({"step": windows.get("step"), "losses": losses}).encode()
    return found._replace(rows=len(rows)), files


def _row(raw: dict[str, Any]) -> dict[str, Any] | None:
    """W&B's row as it was logged; None if it is not one of a run's rows, which count steps."""
    found = {name: _number(value) for name, value in raw.items() if not name.startswith("_")}
    step = found.get("step")
    if step is None or step != step // 1:
        return None
    names = [name for name in _ORDER if name in found] + sorted(found.keys() - set(_ORDER))
    return {
        name: int(value) if name in _WHOLE and math.isfinite(value) else float(value)
        for name in names
        if (value := found[name]) is not None
    }


def _number(value: Any) -> float | int | None:
    """A logged number, restored from W&B's words; None for anything else."""
    if isinstance(value, str):
        return _WORDS.get(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain(value: Any) -> Any:
    """A value for summary.json, where non-finite numbers are null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return None if value in _WORDS else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _put(place: Path, status: str, files: dict[str, bytes]) -> None:
    """Write a run's files; the summary goes first and comes last, so that all or none counts.

    What else the directory holds stays, checkpoints above all.
    """
    place.mkdir(parents=True, exist_ok=True)
    for name in (SUMMARY, PARQUET, WINDOWS, ERROR):
        (place / name).unlink(missing_ok=True)
    for name in files.keys() - {SUMMARY}:
        write_whole(place / name, files[name])
    if status in ENDED:
        write_parquet(place)
    write_whole(place / SUMMARY, files[SUMMARY])


if __name__ == "__main__":
    exit_on_user_error(main)
