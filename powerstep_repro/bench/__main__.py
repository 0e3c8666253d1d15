"""``python -m powerstep_repro.bench``: step time, memory and tokens a second, side by side."""

import argparse
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from nanogpt.runtime import PRECISIONS
from powerstep_repro.bench import output
from powerstep_repro.bench.optimizers import DTYPES, MODELS, bench_optimizers
from powerstep_repro.bench.timing import ROUNDS
from powerstep_repro.bench.training import Job, bench_training
from powerstep_repro.console import table_console
from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error
from powerstep_repro.optim import names

RESULTS = Path("results/bench")
OPTIMIZERS = ("adamw", "powerstep_int8")

# Options by which a call measures a part, or something else than the file by default holds.
PARTS = {
    "optimizers": ("only", "models", "dtype"),
    "training": (
        *("models", "optimizers", "precisions", "batch"),
        *("micro_batches", "nanogpt_micro_batches"),
    ),
}

# Sequences of one forward pass: the fastest on a card of 80 GB; where that is nearly full, or was
# not tried, a safer number besides. The better one counts.
MICRO_BATCHES = {
    "gpt2_mini": {"this project": [8], "nanoGPT": [8]},
    "gpt2_small": {"this project": [120], "nanoGPT": [60]},
    "gpt2_medium": {"this project": [60], "nanoGPT": [60, 40]},
}

EPILOG = """\
other subcommands, each with a --help of its own:
  rerun RUN           train a run's first steps again, and say how far the losses differ
  same-numbers ...    hold the losses of the trainer's kernels against the plain ones
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; print tables, write JSON, return the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["rerun"]:
        from powerstep_repro.bench import rerun

        return rerun.main(argv[1:])
    if argv[:1] == ["same-numbers"]:
        from powerstep_repro.bench import same_numbers

        return same_numbers.main(argv[1:])

    options = _arguments(argv)
    device = _device(options.device)
    cuda = device.type == "cuda"
    models = options.models or (["gpt2_small", "gpt2_medium"] if cuda else ["gpt2_mini"])
    kinds = ("optimizers", "training") if options.what == "all" else (options.what,)
    # Before anything is measured: what is wrong with the training must not wait for the rest.
    jobs = _jobs(options, models, cuda) if "training" in kinds else []
    folder = options.out or RESULTS
    output.make_folder(folder)
    console = table_console()
    header = output.header(device)
    main_rank = int(os.environ.get("RANK", 0)) == 0

    for kind in kinds:
        given = [f"--{name.replace('_', '-')}" for name in PARTS[kind] if getattr(options, name)]
        part = given[0] if given and not options.out else None

        def tell(results: dict, kind: str = kind, part: str | None = part) -> None:
            """Keep what there is so far: the rest may be cut off."""
            if main_rank and part is None:
                output.save(header | results, kind, folder)
            if main_rank and kind == "training":
                console.print(output.brief(results["rows"][-1]))

        if kind == "optimizers":
            results = bench_optimizers(
                models,
                options.dtype or "fp32",
                device,
                released=options.released,
                only=options.only,
                seconds=options.seconds,
                tell=tell,
            )
        else:
            results = bench_training(jobs, device, options.nanogpt, tell)
        if main_rank:
            output.SHOW[kind](header | results, console)
            place = f"written to {output.path_of(header, kind, folder)}"
            if part:
                place = f"not written: {part} measures a part, and --out names no folder for it"
            console.print(place)
    return 0


def _jobs(options: argparse.Namespace, models: Sequence[str], cuda: bool) -> list[Job]:
    """Return the ways to train: every combination of what was given, defaults by device."""
    if options.nanogpt and not (options.nanogpt / "train.py").is_file():
        raise UserError(f"--nanogpt {options.nanogpt}: there is no train.py in that folder")
    jobs = []
    trainers = ["this project", "nanoGPT"] if options.nanogpt else ["this project"]
    for model, who in itertools.product(models, trainers):
        small = model == "gpt2_mini"
        batch = options.batch or (8 if small else 120)
        optimizers = options.optimizers or OPTIMIZERS
        precisions = options.precisions or (["amp_bf16"] if cuda else ["fp32"])
        micro_batches = options.micro_batches or MICRO_BATCHES[model][who]
        if who == "nanoGPT":  # what its train.py has
            optimizers = [name for name in optimizers if name == "adamw"]
            precisions = [name for name in precisions if name != "bf16"]
            micro_batches = options.nanogpt_micro_batches or micro_batches
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


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m powerstep_repro.bench",
        description="Time optimizer steps and training, beside peers, in one process.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="?", choices=["optimizers", "training", "all"], default="all",
        help="what to time (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), metavar="MODEL",
        help=f"of {', '.join(MODELS)}; default: Small and Medium on a GPU, Mini on a CPU",
    )  # fmt: skip
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help=f"for the JSON files (default: {RESULTS}, and none where options choose a part)",
    )  # fmt: skip
    group = parser.add_argument_group("optimizers")
    group.add_argument(
        "--only", type=_pattern, metavar="REGEX",
        help="only optimizers whose label matches; torch's AdamW always takes part",
    )  # fmt: skip
    group.add_argument(
        "--dtype", choices=list(DTYPES), help="of parameters and gradients (default: fp32)"
    )
    group.add_argument(
        "--seconds", type=_seconds, default=0.25, help="of each of a contender's three rounds"
    )
    group.add_argument(
        "--released", type=Path, metavar="DIR", help="a clone of the paper's repository"
    )
    group = parser.add_argument_group("training")
    group.add_argument(
        "--optimizers", nargs="+", choices=names(), metavar="NAME",
        help=f"default: {' '.join(OPTIMIZERS)}",
    )  # fmt: skip
    group.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, help="default: amp_bf16 on a GPU, fp32 else"
    )
    group.add_argument("--nanogpt", type=Path, metavar="DIR", help="a clone of nanoGPT")
    group.add_argument(
        "--micro-batches", nargs="+", type=_whole(1), metavar="N",
        help="sequences of one forward pass, a row each; the best of each trainer is compared "
        "(default: each trainer's best on 80 GB)",
    )  # fmt: skip
    group.add_argument(
        "--nanogpt-micro-batches", nargs="+", type=_whole(1), metavar="N",
        help="the same for nanoGPT, where its list is another",
    )  # fmt: skip
    group.add_argument(
        "--batch", type=_whole(1), metavar="N", help="sequences a step (default: 120, 8 for Mini)"
    )
    group.add_argument(
        "--steps", type=_whole(ROUNDS), metavar="N", help="steps timed (default: 30, 6 on a CPU)"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    exit_on_user_error(main)
