"""Runs trained on another machine, brought into the committed evidence: their compact files alone.

Takes config.yaml, summary.json, metrics.parquet, windows.json and, where there is one,
mechanism.parquet of every run that has ended (finished or diverged). Refused with a sentence are a
run that is damaged or incomplete, one on other data than the runs of its model that are there, and
another outcome of a run that is there. Nothing that is there is ever replaced, so that the same
import may be made again.
"""

import argparse
import os
import shutil
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from powerstep_repro.errors import UserError
from powerstep_repro.runs.files import (
    CONFIG,
    ENDED,
    MECHANISM,
    MECHANISM_LOG,
    METRICS,
    PARQUET,
    SUMMARY,
    WINDOWS,
    read_json,
    write_mechanism,
    write_parquet,
)
from powerstep_repro.runs.load import Loaded, load

COMPACT = (CONFIG, SUMMARY, PARQUET, WINDOWS, MECHANISM)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("source", type=Path, help="a tar of run directories, or a folder of them")
    parser.add_argument(
        "results", type=Path, nargs="?", default=Path("results/h100"),
        help="the profile's folder that gets them (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="check and print, copy nothing")


def run(args: argparse.Namespace) -> int:
    """Import as the arguments say; returns 0, or 1 if a run was refused."""
    if not args.source.exists():
        raise UserError(f"there is no {args.source}")
    if args.source.is_dir():
        refused = bring(args.source, args.results, args.dry_run)
    else:
        with tempfile.TemporaryDirectory(prefix="import-") as temporary:
            refused = bring(unpacked(args.source, Path(temporary)), args.results, args.dry_run)
    for sentence in refused:
        print(f"refused   {sentence}", file=sys.stderr)
    count = len(list((args.results / "runs").glob(f"*/{CONFIG}")))
    print(f"{args.results} holds {count} runs, {_megabytes(args.results):.2f} MB in all")
    return 1 if refused else 0


def bring(source: Path, results: Path, dry_run: bool = False) -> list[str]:
    """Copy the ended runs under ``source`` to ``results/runs``; print a line for each.

    Returns:
        A sentence for each run that was refused.
    """
    profile = results.absolute().name
    come, there = load(source), load(results / "runs")
    if not come.configs and not come.left_out:
        raise UserError(f"{source} holds no run directories")
    hashes = _data_by_model(come) | _data_by_model(there)
    refused = list(come.problems)
    for run, config in sorted(come.configs.items()):
        facts, data = come.runs.loc[run], config["data"].get("hash")
        path, target, model = Path(facts["path"]), results / "runs" / run, config["model"]["name"]
        if facts["status"] not in ENDED:
            print(f"left out  {run}: {facts['status']} at step {facts['steps_done']:.0f}")
        elif config["profile"] != profile:
            refused.append(f"{run}: it is of profile {config['profile']}, {results} of {profile}")
        elif data is None or data != hashes[model]:
            refused.append(f"{run}: it is on data {data}, the runs of {model} on {hashes[model]}")
        elif facts["status"] == "finished" and come.windows(run) is None:
            refused.append(f"{run}: its {WINDOWS} is missing or damaged")
        elif not target.exists():
            if not dry_run:
                copy(path, target)
            outcome = f"diverged at step {facts['diverged_at']:.0f}"
            if facts["status"] == "finished":
                outcome = f"validation loss {facts['final_val_loss']:.4f}"
            print(f"taken     {run}: {outcome}")
        elif read_json(path / SUMMARY) != read_json(target / SUMMARY):
            refused.append(
                f"{run}: {target} is there already, with another {SUMMARY}: move one of them away"
            )
        else:
            print(f"is there  {run}: the same, left alone")
    return refused


def _data_by_model(loaded: Loaded) -> dict[str, str | None]:
    """The data hash that most runs of each model have."""
    counts: dict[str, Counter] = {}
    for config in loaded.configs.values():
        hashes = counts.setdefault(config["model"]["name"], Counter())
        hashes[config["data"].get("hash")] += 1
    return {model: hashes.most_common(1)[0][0] for model, hashes in counts.items()}


def copy(source: Path, target: Path) -> None:
    """Copy the compact files of a run; they come all at once or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=target.parent) as temporary:
        folder = Path(temporary) / target.name
        kept = {path.name for path in source.iterdir()} & {*COMPACT, METRICS, MECHANISM_LOG}
        folder.mkdir()
        for name in kept:
            shutil.copy(source / name, folder / name)
        if PARQUET not in kept:
            write_parquet(folder)
        if MECHANISM not in kept:
            write_mechanism(folder)
        for log in (METRICS, MECHANISM_LOG):
            (folder / log).unlink(missing_ok=True)
        os.rename(folder, target)


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


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
