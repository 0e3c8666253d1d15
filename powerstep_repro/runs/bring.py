"""Runs trained on another machine, brought into the committed evidence: their compact files alone.

Takes config.yaml, summary.json, metrics.parquet and windows.json of every run that has ended
(finished or diverged). Runs that are still on their way are named and left where they are; a
damaged run, one that is not what its name says, one on other data than the runs of its model that
are there, or another outcome of a run that is there already is refused with a sentence. Nothing
that is there is ever replaced, so that the same import may be made again.
"""

import argparse
import shutil
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa

from powerstep_repro.config import run_name
from powerstep_repro.errors import UserError
from powerstep_repro.runs.checks import contradiction, first_hole, windows_agree
from powerstep_repro.runs.files import (
    CONFIG,
    ENDED,
    PARQUET,
    SUMMARY,
    WINDOWS,
    read_parquet,
    write_parquet,
    write_whole,
)
from powerstep_repro.runs.loading import Loaded, load

COMPACT = (CONFIG, SUMMARY, PARQUET, WINDOWS)  # the config first
MB = 1_000_000


def fault(loaded: Loaded, run: str) -> str | None:
    """Say what keeps an ended run from being evidence; None if nothing does.

    Figures and tables show the rest of a run that lacks its last rows or its windows; evidence must
    be whole, and can still be brought again from where it was trained. All else is their rule.
    """
    config, facts = loaded.configs[run], loaded.runs.loc[run]
    if not config["data"].get("hash"):
        return "its config names no data hash"
    if run_name(config) != run:
        return f"its config is that of {run_name(config)}"
    path = Path(facts["path"])
    try:
        if not (path / PARQUET).is_file():
            write_parquet(path)
        log = read_parquet(path / PARQUET, ["step", "val_loss"])
    except (OSError, pa.ArrowException) as error:
        return f"{PARQUET} cannot be read ({str(error).partition(chr(10))[0]})"
    log = log.reindex(columns=["step", "val_loss"])
    steps, last = log["step"], facts["steps_done"]
    # A run that diverged logs the step that it could not take.
    if not len(steps) or steps.iloc[-1] not in (last, facts["diverged_at"]):
        return f"its log ends at step {steps.max()}, its summary at {last:.0f}"
    if hole := first_hole(steps.to_numpy(), config.get("log_interval")):
        return f"its log has no row between the steps {hole[0]:,} and {hole[1]:,}"
    if facts["status"] == "finished":
        if last != config["steps"]:
            return f"it finished at step {last:.0f} of {config['steps']}"
        windows, loss = loaded.windows(run), float(facts["final_val_loss"])
        if wrong := contradiction(loss, log, last):
            return wrong
        if windows is None:
            return f"{WINDOWS} is missing or damaged"
        if not windows_agree(windows, loss):
            return f"{WINDOWS} has the mean {windows.mean():.4f}, its summary says {loss:.4f}"
    return None


def data_by_model(loaded: Loaded) -> dict[str, str]:
    """The data hash that most runs of each model have."""
    counts: dict[str, Counter] = {}
    for config in loaded.configs.values():
        hashes = counts.setdefault(config["model"]["name"], Counter())
        hashes[config["data"].get("hash")] += 1
    return {model: hashes.most_common(1)[0][0] for model, hashes in counts.items()}


def differing(source: Path, target: Path) -> list[str]:
    """The compact files in which a run that comes differs from the directory that is there."""
    names = [name for name in COMPACT if (source / name).is_file() or (target / name).is_file()]
    if not (target / CONFIG).is_file():  # a copy that was cut short: what it lacks may come
        names = [name for name in names if (target / name).is_file()]
    return [name for name in names if not _alike(source / name, target / name)]


def _alike(here: Path, there: Path) -> bool:
    if not (here.is_file() and there.is_file()):
        return False
    if here.read_bytes() == there.read_bytes():
        return True
    try:  # one log has other bytes when another version has written it
        return here.name == PARQUET and read_parquet(here).equals(read_parquet(there))
    except (OSError, pa.ArrowException):
        return False


def copy(source: Path, target: Path) -> None:
    """Copy the compact files; the config last, so that a directory cut short is no run."""
    target.mkdir(parents=True, exist_ok=True)
    for name in reversed(COMPACT):
        if (source / name).is_file():
            write_whole(target / name, (source / name).read_bytes())


def size(folder: Path) -> int:
    """Bytes of the files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def bring(source: Path, results: Path, dry_run: bool = False) -> list[str]:
    """Copy the ended runs under ``source`` to ``results/runs``; print a line for each.

    Returns:
        A sentence for each run that was refused.
    """
    profile = results.absolute().name
    come, there = load(source), load(results / "runs")
    if not come.configs and not come.damaged:
        raise UserError(f"{source} holds no run directories")
    hashes = data_by_model(come) | data_by_model(there)
    refused = [f"{name}: its config is no run's" for name in come.damaged]
    for run, config in sorted(come.configs.items()):
        path, target = Path(come.runs.at[run, "path"]), results / "runs" / run
        status, model = come.runs.at[run, "status"], config["model"]["name"]
        if status not in ENDED:
            print(f"left out  {run}: {status} at step {come.runs.at[run, 'steps_done']:.0f}")
            continue
        reason = fault(come, run)
        if config["profile"] != profile:
            reason = f"it is of profile {config['profile']}, {results} holds {profile}"
        elif reason is None and config["data"]["hash"] != hashes[model]:
            data = config["data"]["hash"]
            reason = f"it is on data {data}, the other runs of {model} on {hashes[model]}"
        elif reason is None and (apart := differing(path, target)):
            reason = (
                f"{path.relative_to(source)} and {target}, which is there already, differ in "
                f"{', '.join(apart)}: move one of them away"
            )
        if reason:
            refused.append(f"{run}: {reason}")
            continue
        if (target / CONFIG).is_file():
            print(f"is there  {run}: the same in every value, left alone")
            continue
        if not dry_run:
            copy(path, target)
        bytes_of = sum((path / name).stat().st_size for name in COMPACT if (path / name).is_file())
        facts = come.runs.loc[run]
        outcome = f"validation loss {facts['final_val_loss']:.4f}"
        if status == "diverged":
            outcome = f"diverged at step {facts['diverged_at']:.0f}"
        print(f"taken     {run}: {outcome}, {bytes_of / 1e3:.0f} kB")
    return refused


def unpacked(source: Path, folder: Path) -> Path:
    """Unpack a tar, of any compression, without what is large and no evidence."""
    try:
        with tarfile.open(source) as tar:
            for member in tar:
                if not member.isfile() or "checkpoints" in Path(member.name).parts:
                    continue
                # By hand: early Python 3.10 and 3.11 have no filter for such names in tarfile.
                path = (folder / member.name.lstrip("/")).resolve()
                if not path.is_relative_to(folder.resolve()):
                    raise UserError(f"{source} names a file outside of itself: {member.name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                with tar.extractfile(member) as packed, open(path, "wb") as file:
                    shutil.copyfileobj(packed, file)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{source} cannot be unpacked: {error}") from None
    return folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("source", type=Path, help="a tar of run directories, or a folder of them")
    parser.add_argument(
        "results", type=Path, nargs="?", default=Path("results/h100"),
        help="the profile's folder that gets them (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--limit-mb", type=float, default=8.0, help="default: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="check and print, copy nothing")


def run(args: argparse.Namespace) -> int:
    """Import as the arguments say; returns 0, or 1 if a run was refused or it is too much."""
    if not args.source.exists():
        raise UserError(f"there is no {args.source}")
    # A folder is copied too: a run without a Parquet log gets one, and not in the original.
    with tempfile.TemporaryDirectory(prefix="import-") as temporary:
        folder = Path(temporary) / "runs"
        if args.source.is_dir():
            left = shutil.ignore_patterns("checkpoints")
            shutil.copytree(args.source, folder / args.source.absolute().name, ignore=left)
        else:
            unpacked(args.source, folder)
        refused = bring(folder, args.results, args.dry_run)
    for sentence in refused:
        print(f"refused   {sentence}", file=sys.stderr)
    whole, runs = size(args.results), args.results / "runs"
    count = len(list(runs.glob(f"*/{CONFIG}")))
    print(f"{args.results}: {whole / MB:.2f} MB, of which {count} runs {size(runs) / MB:.2f} MB")
    if whole > args.limit_mb * MB:
        print(f"error: that is over {args.limit_mb:g} MB", file=sys.stderr)
    return 1 if refused or whole > args.limit_mb * MB else 0
