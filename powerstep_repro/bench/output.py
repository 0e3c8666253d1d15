"""Tables on the screen and JSON files."""

import json
import re
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from powerstep_repro.bench.timing import device_name
from powerstep_repro.errors import UserError
from powerstep_repro.runs.files import write_whole
from powerstep_repro.runs.provenance import code_state

PACKAGES = ("triton", "bitsandbytes", "torchao", "flashoptim")


def header(device: torch.device) -> dict:
    """Return what every file says of where and with what it was measured."""
    versions = {"torch": torch.__version__}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "device": device_name(device),
        "versions": versions,
        **code_state(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def make_folder(folder: Path) -> None:
    """Make the folder of the files before anything is measured; UserError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder} is no folder to write to: {error.strerror}") from None


def path_of(header: dict, kind: str, folder: Path) -> Path:
    """Return a file's name: ``folder/<kind>-<device>.json``."""
    device = re.sub(r"[^a-z0-9]+", "-", header["device"].lower()).strip("-")
    return folder / f"{kind}-{device}.json"


def save(results: dict, kind: str, folder: Path) -> None:
    """Write what was measured so far."""
    text = json.dumps(results, indent=1) + "\n"
    write_whole(path_of(results, kind, folder), text.encode())


def show_optimizers(results: dict, console: Console) -> None:
    """Print a table a model: time, floor, ratios, memory; ``ms`` is of calls back to back."""
    bandwidth = results["copy_bytes_per_s"]
    for model in dict.fromkeys(row["model"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["model"] == model]
        title = (
            f"{model}, {rows[0]['params'] / 1e6:.1f}M parameters, {results['dtype']}: a step on "
            f"{results['device']}, back to back (copies {bandwidth / 1e12:.2f} TB/s)"
        )
        columns = ["ms", "rounds", "floor ms", "× floor", "× AdamW fused", "× foreach"]
        columns += ["host ms", "B/param", "extra MiB"]
        table = _table(title, ["optimizer", *columns])
        for row in rows:
            if "failed" in row:
                table.add_row(row["label"], "-", row["failed"])
                continue
            extra = row["extra_bytes"]
            table.add_row(
                row["label"],
                f"{row['ms']:.3f}",
                _span(row["ms_rounds"]),
                f"{row['floor_ms']:.3f}",
                f"{row['times_floor']:.2f}",
                f"{row['ratio_to_adamw_fused']:.3f}",
                f"{row['ratio_to_adamw_foreach']:.3f}",
                f"{row['host_ms']:.3f}",
                f"{row['bytes'] / row['params']:.2f}",
                "" if extra is None else f"{extra / 2**20:.1f}",
            )
        console.print(table)


def brief(row: dict) -> str:
    """Return a training row in a line."""
    found = row.get("failed") or f"{row['tokens_per_s']:,.0f} tokens/s"
    way = (row["who"], row["model"], row["optimizer"], row["precision"])
    return f"{', '.join(way)}, {row['micro']} a pass: {found}"


def show_training(results: dict, console: Console) -> None:
    """Print a table of tokens a second."""
    columns = ["optimizer", "precision", "batch", "micro", "step ms", "tokens/s", "rounds", "MFU"]
    title = f"training on {results['device']}"
    if (world := max(row.get("world", 1) for row in results["rows"])) > 1:
        title += f", {world} ranks"
    table = _table(title, ["model", "trainer", *columns])
    for row in results["rows"]:
        way = [
            row["model"],
            row["who"],
            row["optimizer"],
            row["precision"] + (" compiled" if row["compile"] else ""),
            str(row["batch"]),
            str(row["micro"]),
        ]
        if "failed" in row:
            table.add_row(*way, "-", row["failed"])
            continue
        table.add_row(
            *way,
            f"{row['step_ms']:.1f}",
            f"{row['tokens_per_s']:,.0f}",
            f"{min(row['tokens_per_s_rounds']):,.0f}–{max(row['tokens_per_s_rounds']):,.0f}",
            "" if row["mfu"] is None else f"{100 * row['mfu']:.1f} %",
        )
    console.print(table)
    for way, ratio in times_nanogpt(results["rows"]).items():
        console.print(f"{', '.join(way)}: {ratio:.3f} × nanoGPT, each at its best micro-batch")


def times_nanogpt(rows: list[dict]) -> dict[tuple[str, str], float]:
    """Return the rate over nanoGPT's, both with AdamW and at their best, by model and precision."""
    best: dict[str, dict[tuple[str, str], float]] = {"this project": {}, "nanoGPT": {}}
    for row in rows:
        if row["optimizer"] == "adamw" and "failed" not in row:
            rates, way = best[row["who"]], (row["model"], row["precision"])
            rates[way] = max(rates.get(way, 0.0), row["tokens_per_s"])
    ours, theirs = best.values()
    return {way: ours[way] / theirs[way] for way in ours if way in theirs}


SHOW = {"optimizers": show_optimizers, "training": show_training}


def _span(rounds: list[float]) -> str:
    return f"{min(rounds):.3f}–{max(rounds):.3f}"


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    return table
