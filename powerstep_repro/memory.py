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

from omegaconf import OmegaConf

from powerstep_repro.config import CONF, choices, suggestion
from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error
from powerstep_repro.models.count import Count, count
from powerstep_repro.paper import MODELS, NUMBERS, TABLES, model_label, optimizer_label, value
from powerstep_repro.paper import table as paper_table

MIB = 2**20
#: Devices behind every number of the paper's memory table.
PAPER_DEVICES = 256
#: Bytes of an fp32 copy of a parameter.
MASTER = 4.0

EXPLANATION = """\
The paper's "MB" is MiB of optimizer state, averaged over its 256 devices. For a mixture of experts
it counts the routed experts' parameters alone; for Qwen3-32B all parameters, with the norms held
once by each of the 8 tensor-parallel ranks. "Whole model" counts every parameter once, and is what
an evenly sharded state takes. The paper's "about 8x" is {ratio:.2f}, {masters:.2f} if the fp32
master copy of bf16 weights is counted, and {int8:.2f} against an 8-bit AdamW."""


def state_bytes_per_param() -> dict[str, float]:
    """Bytes of state a parameter for the memory table's two optimizers, without torch.

    AdamW: two fp32 moments. PowerStep int8: a code, and a share of its block's fp32 scale.
    """
    block = OmegaConf.load(CONF / "optimizer" / "powerstep_int8.yaml").block_size
    return {"adamw": 8.0, "powerstep_int8": 1.0 + 4.0 / block}


def bytes_per_param(optimizer: str) -> float:
    """Bytes of state a parameter for any optimizer of the registry, at its config's settings."""
    known = state_bytes_per_param()
    if optimizer in known:
        return known[optimizer]
    from powerstep_repro import optim

    settings = OmegaConf.to_container(OmegaConf.load(CONF / "optimizer" / f"{optimizer}.yaml"))
    settings.pop("name")
    return optim.bytes_per_param(optimizer, **settings)


def paper_counts(model: str) -> Count:
    """Count the parameters of a model as the paper has it, whatever the profile."""
    return count(OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{model}.yaml")))


def counted_by_the_paper(model: str) -> tuple[int, int]:
    """Return the parameters whose state the paper's number counts, and those of the whole model.

    Found by matching its eight numbers: of a mixture of experts the routed experts alone; of a
    dense model all, its one-dimensional parameters held once by every tensor-parallel rank.
    """
    counts = paper_counts(model)
    if counts.routed_expert_params:
        return counts.routed_expert_params, counts.n_params
    ranks = int(value("parallelism", model, "tp")) if model in MODELS else 1
    return counts.n_params + (ranks - 1) * counts.one_dim_params, counts.n_params


def rows(
    models: Iterable[str] = tuple(dict.fromkeys(cell.model for cell in paper_table("memory"))),
    optimizers: Iterable[str] = TABLES["memory"].columns,
    devices: int = PAPER_DEVICES,
) -> list[dict[str, Any]]:
    """Compute one row a model and optimizer. No torch for the memory table's own optimizers.

    Args:
        models: Names in ``conf/model``; as default the memory table's four.
        optimizers: Names in ``conf/optimizer``; as default the memory table's two.
        devices: Over how many devices the state is averaged.

    Returns:
        Dictionaries with ``model, optimizer, devices, n_params, routed_expert_params,
        bytes_per_param``; ``paper_mb`` (as printed; None where the paper prints none),
        ``paper_counting_mb``, ``whole_model_mb`` and ``with_masters_mb`` (whole model, an fp32
        master copy included), all in MiB a device; ``ratio`` and ``ratio_with_masters``, AdamW's
        state over this one's.
    """
    out = []
    adamw = state_bytes_per_param()["adamw"]
    printed = {(n.model, n.column): n.value for n in NUMBERS if n.table == "memory"}
    optimizers = list(optimizers)
    sizes = {name: bytes_per_param(name) for name in optimizers}
    for model in models:
        counted, whole = counted_by_the_paper(model)
        for name in optimizers:
            size = sizes[name]
            here = devices == PAPER_DEVICES
            out.append(
                {
                    "model": model,
                    "optimizer": name,
                    "devices": devices,
                    "n_params": whole,
                    "routed_expert_params": paper_counts(model).routed_expert_params,
                    "bytes_per_param": size,
                    "paper_mb": printed.get((model, name)) if here else None,
                    "paper_counting_mb": size * counted / devices / MIB,
                    "whole_model_mb": size * whole / devices / MIB,
                    "with_masters_mb": (size + MASTER) * whole / devices / MIB,
                    "ratio": adamw / size,
                    "ratio_with_masters": (adamw + MASTER) / (size + MASTER),
                }
            )
    return out


def explanation() -> str:
    """Say in words why the table's columns differ."""
    size = state_bytes_per_param()
    adamw, ours = size["adamw"], size["powerstep_int8"]
    masters = (adamw + MASTER) / (ours + MASTER)
    return EXPLANATION.format(ratio=adamw / ours, masters=masters, int8=2 * ours / ours)


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


def as_text(table: Sequence[dict[str, Any]]) -> str:
    """Lay rows out in aligned columns, numbers to the right; None becomes a dash."""
    labels = {"model": model_label, "optimizer": optimizer_label}
    keys = [key for key in table[0] if key in _COLUMNS]

    def cell(key: str, content: Any) -> str:
        if content is None:
            return "-"
        return _COLUMNS[key][1].format(labels.get(key, lambda same: same)(content))

    lines = [[_COLUMNS[key][0] for key in keys]]
    lines += [[cell(key, row[key]) for key in keys] for row in table]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = [key in labels for key in keys]
    return "\n".join(
        "  ".join(
            text.ljust(width) if is_left else text.rjust(width)
            for text, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    )


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
    if arguments.measure:
        if arguments.devices is not None:
            raise UserError("--devices goes with the analytic table; --measure is of one device")
        from powerstep_repro.models.measure import measure

        models = _names(arguments.model, ["qwen3_0_6b"], "model")
        optimizers = _names(arguments.optimizer, choices("optimizer"), "optimizer")
        table = [measure(m, o, arguments.profile) for m in models for o in optimizers]
    else:
        memory_table = paper_table("memory")
        models = _names(arguments.model, dict.fromkeys(n.model for n in memory_table), "model")
        optimizers = _names(arguments.optimizer, TABLES["memory"].columns, "optimizer")
        table = rows(models, optimizers, devices)
    if arguments.format == "json":
        print(json.dumps(table, indent=2))
    elif arguments.format == "csv":
        writer = csv.DictWriter(sys.stdout, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    else:
        print(as_text(table))
        if arguments.measure:
            print(f"\nOne step of each model's shape at profile {arguments.profile}.")
        else:
            print(f"\nMiB of state a device, over {devices} devices.\n{explanation()}")
    return 0


if __name__ == "__main__":
    exit_on_user_error(main)
