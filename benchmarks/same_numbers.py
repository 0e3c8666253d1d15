"""Whether a faster training step keeps the numbers: losses of the same batches, step by step.

Training in bf16 is chaotic: two orders of the same fp32 sums already drift apart. That drift is the
yardstick. Record one file a variant, on one card each, side by side if there are several::

    python benchmarks/same_numbers.py train DATA plain-40.json --plain --micro-batch 40
    python benchmarks/same_numbers.py train DATA plain-30.json --plain --micro-batch 30
    python benchmarks/same_numbers.py train DATA kernels-40.json --micro-batch 40
    python benchmarks/same_numbers.py compare plain-40.json plain-30.json kernels-40.json

``compare`` takes the first file as the reference and the second as its other order of summation.
The bound, fixed before anything was measured: every further file's mean \\|loss - reference\\| over
all steps is at most twice that of the second.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch

from nanogpt import kernels
from nanogpt.data import TokenData
from nanogpt.loop import train
from nanogpt.model import GPT, GPTConfig
from nanogpt.runtime import Runtime, decay_groups, seeded
from nanogpt.settings import Settings
from nanogpt.signals import obey
from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error
from powerstep_repro.optim import create

BOUND = 2.0


class _Losses(list):
    """A recorder that keeps each step's loss."""

    def resume(self, step):
        pass

    def log(self, row):
        self.append(row["train_loss"])

    def windows(self, step, losses):
        pass


def main() -> None:
    """Train one variant, or compare what variants left."""
    parser = CommandParser(
        prog="python benchmarks/same_numbers.py", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="record the losses of one variant")
    training.add_argument("data", type=Path, help="a folder of token files")
    training.add_argument("out", type=Path, help="the file to write")
    training.add_argument("--plain", action="store_true", help="without the trainer's kernels")
    training.add_argument("--micro-batch", type=int, default=40)
    training.add_argument("--batch", type=int, default=120)
    training.add_argument("--context", type=int, default=1024)
    training.add_argument("--steps", type=int, default=200)
    training.add_argument("--layers", type=int, default=12)
    comparison = commands.add_parser("compare", help="hold losses against the first file's")
    comparison.add_argument("files", type=Path, nargs="+", help="reference, other order, others")
    options = parser.parse_args()
    if options.command == "train":
        losses = record(options)
        options.out.write_text(json.dumps(losses))
        print(f"{options.out}: losses of {len(losses)} steps, the last {losses[-1]:.4f}")
    elif not compare(options.files):
        raise UserError(f"beyond the bound of {BOUND} times the other order's drift")


def record(options: argparse.Namespace) -> list[float]:
    """Train GPT-2 at a fixed seed; return the loss of each step."""
    kernels.enabled = not options.plain
    losses = _Losses()
    data = TokenData.open(options.data)
    with Runtime("auto", "amp_bf16", compile=torch.cuda.is_available()) as runtime:
        seeded(1337)
        model = runtime.place(GPT(GPTConfig(n_layer=options.layers, context=options.context)))
        optimizer = create("adamw", decay_groups(model, 0.1), lr=6e-4)
        settings = Settings(
            steps=options.steps,
            batch=options.batch,
            context=options.context,
            micro_batch=options.micro_batch,
            lr=6e-4,
            warmup_steps=options.steps // 10,
            eval_windows=1,
        )
        result = train(
            settings, model=model, optimizer=optimizer, data=data, runtime=runtime, recorder=losses
        )
        obey(result.signal)
    return losses


def compare(files: list[Path]) -> bool:
    """Print each file's drift from the first; say whether all keep the bound."""
    reference, *others = (_recorded(file) for file in files)
    if len(others) < 2:
        raise UserError(f"{len(files)} files given; it takes a reference, another order, others")
    drifts = []
    for file, losses in zip(files[1:], others, strict=True):
        if len(losses) != len(reference):
            raise UserError(f"{file} has {len(losses)} steps and {files[0]} {len(reference)}")
        apart = [abs(a - b) for a, b in zip(losses, reference, strict=True)]
        drifts.append(statistics.mean(apart))
        print(f"{file.stem}: mean |difference| {drifts[-1]:.2e}, largest {max(apart):.2e}")
    return all(drift <= BOUND * drifts[0] for drift in drifts[1:])


def _recorded(file: Path) -> list[float]:
    try:
        losses = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if not isinstance(losses, list) or not losses or {type(x) for x in losses} != {float}:
        raise UserError(f"{file} holds no list of losses, one a step")
    return losses


if __name__ == "__main__":
    exit_on_user_error(main)
