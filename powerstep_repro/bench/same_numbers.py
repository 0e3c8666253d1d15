"""Whether a faster training step keeps the numbers: losses of the same batches, step by step.

Training in bf16 is chaotic: two orders of the same fp32 sums already drift apart, and how far is
chance. That drift is the yardstick, of several orders: other micro-batches, another attention, not
compiled. The drift of two files is the mean \\|difference\\| of their losses: over all steps, and
over those of the warm-up, before chaos has made any difference as large as any other. The bound: in
the mean over pairs of files, both of the kernels' drifts from plain are at most twice those of the
plain ones from each other. The factor was fixed before anything was measured.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import combinations, product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from nanogpt import kernels
from nanogpt.data import TokenData
from nanogpt.loop import train
from nanogpt.model import GPT, GPTConfig
from nanogpt.runtime import Runtime, seeded
from nanogpt.settings import Settings
from nanogpt.signals import obey
from powerstep_repro.errors import CommandParser, UserError
from powerstep_repro.optim import create_for_model

BOUND = 2.0
ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
EPILOG = """\
Record one file a variant, on one card each, side by side if there are several; then compare:

  bench="python -m powerstep_repro.bench same-numbers"
  $bench train DATA plain-20.json --plain --micro-batch 20
  $bench train DATA plain-15.json --plain --micro-batch 15
  $bench train DATA plain-flash.json --plain --attention flash
  $bench train DATA plain-eager.json --plain --eager
  $bench train DATA kernels-20.json --micro-batch 20
  $bench train DATA kernels-15.json --micro-batch 15
  $bench compare --plain plain-*.json --kernels kernels-*.json

Exit code of compare: 0 within the bound, 1 beyond it.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Train one variant, or compare what variants left; returns the exit code."""
    parser = CommandParser(
        prog="python -m powerstep_repro.bench same-numbers",
        description=__doc__.splitlines()[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="record the losses of one variant")
    training.add_argument("data", type=Path, help="a folder of token files")
    training.add_argument("out", type=Path, help="the file to write")
    training.add_argument("--plain", action="store_true", help="without the trainer's kernels")
    training.add_argument("--eager", action="store_true", help="not compiled, for another order")
    training.add_argument("--micro-batch", type=int, default=20)
    training.add_argument(
        "--attention", choices=ATTENTION, help="another than torch's choice, for another order"
    )
    training.add_argument("--batch", type=int, default=120)
    training.add_argument("--context", type=int, default=1024)
    training.add_argument("--steps", type=int, default=200)
    training.add_argument("--layers", type=int, default=12)
    comparison = commands.add_parser("compare", help="hold the kernels' losses against plain ones")
    comparison.add_argument("--plain", type=Path, nargs="+", required=True, help="two or more")
    comparison.add_argument("--kernels", type=Path, nargs="+", required=True)
    options = parser.parse_args(argv)
    if options.command == "train":
        losses = record(options)
        options.out.write_text(json.dumps(losses))
        print(f"{options.out}: losses of {len(losses)} steps, the last {losses[-1]:.4f}")
    elif not compare(options.plain, options.kernels):
        raise UserError(f"beyond the bound of {BOUND} times the drift of plain orders")
    return 0


class _Losses(list):
    """A recorder that keeps each step's loss and nothing else."""

    def resume(self, step: int) -> None:
        pass

    def log(self, row: dict[str, Any]) -> None:
        self.append(row["train_loss"])

    def windows(self, step: int, losses: list[float]) -> None:
        pass


def record(options: argparse.Namespace) -> list[float]:
    """Train GPT-2 at a fixed seed; return the loss of each step."""
    kernels.enabled = not options.plain
    losses = _Losses()
    data = TokenData.open(options.data)
    chosen = sdpa_kernel(ATTENTION[options.attention]) if options.attention else nullcontext()
    compiled = torch.cuda.is_available() and not options.eager
    with chosen, Runtime("auto", "amp_bf16", compile=compiled) as runtime:
        seeded(1337)
        model = runtime.place(GPT(GPTConfig(n_layer=options.layers, context=options.context)))
        optimizer = create_for_model("adamw", model, lr=6e-4, weight_decay=0.1)
        settings = Settings(
            steps=options.steps,
            batch=options.batch,
            context=options.context,
            micro_batch=options.micro_batch,
            lr=6e-4,
            warmup_steps=_warmup(options.steps),
            eval_windows=1,
        )
        result = train(
            settings, model=model, optimizer=optimizer, data=data, runtime=runtime, recorder=losses
        )
        obey(result.signal)
    return losses


def compare(plain: list[Path], kernels: list[Path]) -> bool:
    """Print how far the files drift apart, pair by pair; say whether the kernels keep the bound."""
    if len(plain) < 2:
        raise UserError(f"--plain has {len(plain)} file; it takes two or more, the yardstick")
    losses = {file: _recorded(file) for file in (*plain, *kernels)}
    steps = len(losses[plain[0]])
    for file, recorded in losses.items():
        if len(recorded) != steps:
            raise UserError(f"{file} has {len(recorded)} steps and {plain[0]} {steps}")
    windows = (_warmup(steps) or 1, steps)

    def drifts(pairs: Iterable[tuple[Path, Path]]) -> list[float]:
        """Return the mean over pairs, by window."""
        by_pair = []
        for a, b in pairs:
            apart = [y - x for x, y in zip(losses[a], losses[b], strict=True)]
            sizes = [abs(x) for x in apart]
            by_pair.append([mean(sizes[:window]) for window in windows])
            print(
                f"{a.stem}, {b.stem}: mean |difference| {mean(sizes):.2e}, "
                f"largest {max(sizes):.2e}, with its sign {mean(apart):+.2e}"
            )
        return [mean(column) for column in zip(*by_pair, strict=True)]

    yardsticks, found = drifts(combinations(plain, 2)), drifts(product(plain, kernels))
    for window, yardstick, drift in zip(windows, yardsticks, found, strict=True):
        print(
            f"{window} steps: plain orders from each other {yardstick:.2e}, "
            f"kernels from plain {drift:.2e}"
        )
    return all(k <= BOUND * p for p, k in zip(yardsticks, found, strict=True))


def _warmup(steps: int) -> int:
    return steps // 10


def _recorded(file: Path) -> list[float]:
    try:
        losses = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(losses, list) or not losses or {type(x) for x in losses} != {float}:
        raise UserError(f"{file} holds no list of losses, one a step")
    return losses
