"""Optimizer-state memory: ``python -m powerstep_repro.memory``.

Without options: the paper's memory table, each of its numbers beside what its counting gives and
what the whole model gives. With options: any model, any optimizer, any number of devices. From
shapes alone, in seconds; ``--measure`` steps real optimizers on a small model instead.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from powerstep_repro.config import choices, suggestion
from powerstep_repro.console import table_console
from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error
from powerstep_repro.evidence.memory import PAPER_DEVICES, explanation, rows
from powerstep_repro.paper import TABLES, model_label, optimizer_label
from powerstep_repro.paper import table as paper_table

#: Column -> its heading and number format in a printed table.
_COLUMNS = {
    "model": ("Model", "{}"),
    "optimizer": ("Optimizer", "{}"),
    "n_params": ("Parameters", "{:,}"),
    "routed_expert_params": ("in routed experts", "{:,}"),
    "bytes_per_param": ("Bytes each", "{:g}"),
    "paper_mb": ("Paper", "{:.1f}"),
    "paper_counting_mb": ("Its counting", "{:.2f}"),
    "whole_model_mb": ("Whole model", "{:.2f}"),
    "with_masters_mb": ("with fp32 masters", "{:.2f}"),
    "ratio": ("AdamW / this", "{:.2f}"),
    "ratio_with_masters": ("with fp32 masters", "{:.2f}"),
    "measured_bytes_per_param": ("Measured", "{:.5f}"),
    "difference": ("Difference", "{:+.3%}"),
    "state_mb": ("State (MiB)", "{:.3f}"),
    "step_peak_mb": ("Peak of a step (MiB)", "{:.1f}"),
}


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows in aligned columns, numbers to the right; None becomes a dash."""
    keys = [key for key in rows[0] if key in _COLUMNS]
    table = Table(box=None, pad_edge=False, header_style="")
    for key in keys:
        left = key in ("model", "optimizer")
        table.add_column(_COLUMNS[key][0], justify="left" if left else "right")
    for row in rows:
        named = ", ".join(filter(None, [optimizer_label(row["optimizer"]), row["groups"]]))
        shown = row | {"model": model_label(row["model"]), "optimizer": named}
        table.add_row(
            *("-" if shown[key] is None else _COLUMNS[key][1].format(shown[key]) for key in keys)
        )
    table_console().print(table)


def _names(given: str | None, default: Iterable[str], group: str) -> list[str]:
    """Read a comma-separated list of the names of a config group."""
    if given is None:
        return list(default)
    known = choices(group)
    wanted = known if given == "all" else [name.strip() for name in given.split(",")]
    for name in wanted:
        if name not in known:
            hint = suggestion(name, known)
            raise UserError(f"unknown {group} {name!r}{hint}: choose one of {', '.join(known)}")
    return list(dict.fromkeys(wanted))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m powerstep_repro.memory",
        description="Optimizer-state memory a device, in MiB. Without options: the paper's "
        "memory table beside its counting and beside the whole models.",
    )
    many = "NAME[,NAME...]"
    parser.add_argument("--model", metavar=many, help="models of conf/model, or all")
    parser.add_argument("--optimizer", metavar=many, help="optimizers of conf/optimizer, or all")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="groups.KIND.KEY=VALUE",
        help="another rule for a kind of parameters, e.g. groups.embeddings.name=adamw",
    )
    parser.add_argument("--devices", type=int, help=f"default: {PAPER_DEVICES}")
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="step each optimizer on a small model and compare its real state with the analytic "
        "figure; on a GPU also the peak memory of the step",
    )
    parser.add_argument(
        "--profile", choices=choices("profile"), default="tiny", help="the model that is measured"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = _arguments(argv)
    devices = PAPER_DEVICES if arguments.devices is None else arguments.devices
    if devices < 1:
        raise UserError(f"--devices={devices} must be a whole number of at least 1.")
    for word in arguments.overrides:
        if not word.startswith("groups."):
            raise UserError(f"{word!r} is not of the form groups.KIND.KEY=VALUE")
    if arguments.measure:
        if arguments.devices is not None:
            raise UserError("--devices goes with the analytic table; --measure is of one device")
        from powerstep_repro.models.measure import measure

        models = _names(arguments.model, ["qwen3_0_6b"], "model")
        optimizers = _names(arguments.optimizer, choices("optimizer"), "optimizer")
        how = (arguments.profile, arguments.overrides)
        table = [measure(m, o, *how) for m in models for o in optimizers]
    else:
        memory_table = paper_table("memory")
        models = _names(arguments.model, dict.fromkeys(n.model for n in memory_table), "model")
        optimizers = _names(arguments.optimizer, TABLES["memory"].columns, "optimizer")
        table = rows(models, optimizers, devices, arguments.overrides)
    if arguments.format == "json":
        print(json.dumps(table, indent=2))
    elif arguments.format == "csv":
        writer = csv.DictWriter(sys.stdout, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    else:
        show(table)
        if arguments.measure:
            print(f"\nOne step of each model's shape at profile {arguments.profile}.")
        else:
            print(f"\nMiB of state a device, over {devices} devices.\n{explanation()}")
    return 0


if __name__ == "__main__":
    exit_on_user_error(main)
