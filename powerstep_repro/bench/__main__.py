"""``python -m powerstep_repro.bench``: step time, memory and tokens a second, side by side."""

import argparse
import itertools
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from nanogpt.runtime import PRECISIONS
from powerstep_repro.bench import output
from powerstep_repro.bench.optimizers import DTYPES, MODELS, bench_optimizers
from powerstep_repro.bench.timing import ROUNDS
from powerstep_repro.console import table_console
from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error
from powerstep_repro.optim import names

RESULTS = Path("results/bench")
OPTIMIZERS = ("adamw", "powerstep_int8")

# Options by which a benchmark measures a part, or something else than the file by default holds.
PARTS = {
    "optimizers": ("only", "models", "dtype"),
    "training": ("models", "optimizers", "precisions", "micro_batches", "batch"),
    "tune": (),
}

# Sequences of one forward pass: the fastest on a card of 80 GB; where that is nearly full, or was
# not tried, a safer number besides. The better one counts.
MICRO_BATCHES = {
    "gpt2_mini": {"this project": [8], "nanoGPT": [8]},
    "gpt2_small": {"this project": [120], "nanoGPT": [60]},
    "gpt2_medium": {"this project": [60], "nanoGPT": [60, 40]},
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run what was asked for; print tables and write JSON."""
    options = _arguments(argv)
    device = _device(options.device)
    cuda = device.type == "cuda"
    models = options.models or (["gpt2_small", "gpt2_medium"] if cuda else ["gpt2_mini"])
    trains = options.what in ("training", "all")
    # Before anything is measured: what is wrong with the training must not wait for the rest.
    jobs = _jobs(options, models, cuda) if trains else []
    folder = options.out or RESULTS
    output.make_folder(folder)
    console = table_console()
    header = output.header(device)
    dtype = options.dtype or "fp32"

    def part_of(kind: str) -> str | None:
        """Return an option by which the results are none to replace the file of a whole one."""
        given = [f"--{name.replace('_', '-')}" for name in PARTS[kind] if getattr(options, name)]
        return given[0] if given and not options.out else None

    def finish(kind: str, results: dict, show) -> None:
        results = header | results
        show(results, console)
        if part := part_of(kind):
            console.print(f"not written: {part} measures a part, and --out names no folder for it")
            return
        console.print(f"written to {output.save(results, kind, folder)}")

    if options.tune:
        if not cuda:
            raise UserError("--tune compiles kernels for a CUDA device; there is none")
        from powerstep_repro.bench.tune import tune

        finish("tune", tune(models, dtype, device), output.show_tuning)
    if options.what in ("optimizers", "all"):
        results = bench_optimizers(
            models,
            dtype,
            device,
            released=options.released,
            only=options.only,
            seconds=options.seconds,
        )
        finish("optimizers", results, output.show_optimizers)
    if trains:
        from powerstep_repro.bench.training import bench_training

        main_rank = int(os.environ.get("RANK", 0)) == 0

        def tell(results: dict) -> None:
            """Keep what there is, should the rest be cut off."""
            if main_rank:
                if not part_of("training"):
                    output.save(header | results, "training", folder, complete=False)
                console.print(output.brief(results["rows"][-1]))

        results = bench_training(jobs, device, options.nanogpt, tell)
        if main_rank:
            finish("training", results, output.show_training)


def _jobs(options: argparse.Namespace, models: Sequence[str], cuda: bool) -> list:
    """Return the ways to train: every combination of what was given, defaults by device."""
    from powerstep_repro.bench.training import Job

    if options.nanogpt and not (options.nanogpt / "train.py").is_file():
        raise UserError(f"--nanogpt {options.nanogpt}: there is no train.py in that folder")
    jobs = []
    trainers = ["this project", "nanoGPT"] if options.nanogpt else ["this project"]
    for model, who in itertools.product(models, trainers):
        small = model == "gpt2_mini"
        batch = options.batch or (8 if small else 120)
        optimizers = options.optimizers or OPTIMIZERS
        precisions = options.precisions or (["amp_bf16"] if cuda else ["fp32"])
        if who == "nanoGPT":  # what its train.py has
            optimizers = [name for name in optimizers if name == "adamw"]
            precisions = [name for name in precisions if name != "bf16"]
        micro_batches = options.micro_batches or MICRO_BATCHES[model][who]
        for precision, micro, optimizer in itertools.product(precisions, micro_batches, optimizers):
            if batch % micro:
                raise UserError(f"--micro-batches {micro} does not divide the batch of {batch}")
            jobs.append(
                Job(
                    who=who,
                    model=model,
                    optimizer=optimizer,
                    precision=precision,
                    batch=batch,
                    micro=micro,
                    context=64 if small else 1024,
                    steps=options.steps or (30 if cuda else 6),
                    compile=cuda,
                )
            )
    return jobs


def _whole(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from ``least`` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no whole number of at least {least}")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is no regular expression: {error}") from None
    return text


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no CUDA device")
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m powerstep_repro.bench",
        description="Time optimizer steps and training, beside peers, in one process.",
    )
    parser.add_argument(
        "what", nargs="?", choices=["optimizers", "training", "all"], default="all",
        help="what to time (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), metavar="MODEL",
        help=f"of {', '.join(MODELS)}; default: Small and Medium on a GPU, Mini on a CPU",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=list(DTYPES), help="of parameters and gradients (default: fp32)"
    )
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument(
        "--only", type=_pattern, metavar="REGEX",
        help="only optimizers whose label matches",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=_seconds, default=0.25, help="of each of a contender's three rounds"
    )
    parser.add_argument(
        "--released", type=Path, metavar="DIR", help="a clone of the paper's repository"
    )
    parser.add_argument(
        "--tune", action="store_true", help="first try ways to cut and compile the fused kernels"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"for the JSON files (default: {RESULTS}, and none where options choose a part)",
    )
    group = parser.add_argument_group("training")
    group.add_argument(
        "--optimizers", nargs="+", choices=names(), metavar="NAME",
        help=f"default: {' '.join(OPTIMIZERS)}",
    )  # fmt: skip
    group.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, help="default: amp_bf16 on a GPU, fp32 else"
    )
    group.add_argument(
        "--micro-batches",
        nargs="+",
        type=_whole(1),
        metavar="N",
        help="sequences of one forward pass, a row each (default: each trainer's best on 80 GB)",
    )
    group.add_argument("--nanogpt", type=Path, metavar="DIR", help="a clone of nanoGPT")
    group.add_argument(
        "--batch", type=_whole(1), metavar="N", help="sequences a step (default: 120, 8 for Mini)"
    )
    group.add_argument(
        "--steps", type=_whole(ROUNDS), metavar="N", help="steps timed (default: 30, 6 on a CPU)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    exit_on_user_error(main)
