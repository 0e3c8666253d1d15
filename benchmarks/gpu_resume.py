"""Exact resume on a CUDA card: compiled, bf16, deterministic kernels; straight against killed.

Trains a model of GPT-2 Small's width three times with the train command: straight through; then
again until a SIGKILL from outside at a random step; then the same command once more, which goes on
from the last checkpoint. Straight and resumed must be equal to the last bit: every row of the log
(timing aside), the last evaluation, the outcome, weights and optimizer state.

    python benchmarks/gpu_resume.py [--optimizer powerstep_int8] [--layers 4] [--steps 40]
        [--no-deterministic] [--cold] [--device cuda] [--folder DIR]

``--no-deterministic`` measures what is lost without deterministic kernels, ``--cold`` lets the
resumed run compile with an empty cache, as on another machine. Prints a verdict as JSON. Exit
code: 0 if all is equal, 1 otherwise.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from compare_runs import differences, left

from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error
from powerstep_repro.optim import names

CHECKPOINT_INTERVAL = 5
BEFORE_THE_END = 10  # steps that the kill leaves undone: a step takes milliseconds
LEAST_STEPS = CHECKPOINT_INTERVAL + BEFORE_THE_END + 1
TRAIN_TOKENS, VAL_TOKENS, VOCABULARY = 1_000_000, 40_000, 50257
POLL_S = 0.02
PATIENCE_S = 300


def write_tokens(folder: Path) -> None:
    """A stream with something to learn: a walk over the vocabulary by small steps."""
    folder.mkdir(parents=True, exist_ok=True)
    moves = np.random.default_rng(0).integers(0, 4, TRAIN_TOKENS + VAL_TOKENS)
    tokens = (np.cumsum(moves) % VOCABULARY).astype("<u2")
    (folder / "train.bin").write_bytes(tokens[:TRAIN_TOKENS].tobytes())
    (folder / "val.bin").write_bytes(tokens[TRAIN_TOKENS:].tobytes())


class Trainings:
    """Starts the train command, each time with the same run in mind."""

    def __init__(self, folder: Path, args: argparse.Namespace):
        self.folder = folder
        self.overrides = [
            *("profile=h100", "model=gpt2_small", f"model.layers={args.layers}"),
            *(f"optimizer={args.optimizer}", f"steps={args.steps}", "batch=16", "micro_batch=8"),
            *("model.dropout=0.1", "eval_interval=10", "eval_windows=16", "log_interval=1"),
            *(f"checkpoint_interval={CHECKPOINT_INTERVAL}", f"device={args.device}"),
            *("precision=amp_bf16", f"compile={json.dumps(args.device == 'cuda')}"),
            f"deterministic={json.dumps(not args.no_deterministic)}",
            *("data=tokens", f"data.path={folder / 'tokens'}", f"data_dir={folder / 'data'}"),
        ]
        if args.device == "cpu":
            self.overrides += ["model.hidden=32", "model.heads=2", "context=32"]

    def start(self, results: str, **environment: str) -> subprocess.Popen:
        with open(self.folder / f"{results}.txt", "ab") as output:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "powerstep_repro.train", *self.overrides),
                    f"results_dir={self.folder / results}",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )

    def run_dir(self, results: str) -> Path | None:
        return next((self.folder / results / "h100" / "runs").glob("*"), None)

    def finish(self, results: str, **environment: str) -> float:
        """Train to the end; returns the seconds it took."""
        process, began = self.start(results, **environment), time.monotonic()
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        if code:
            sys.exit(f"training ended with {code}:\n{(self.folder / f'{results}.txt').read_text()}")
        return round(time.monotonic() - began, 1)

    def kill_after(self, results: str, step: int) -> int:
        """Train until ``step`` is logged, then kill; returns the last step in the log."""
        process, give_up = self.start(results), time.monotonic() + PATIENCE_S
        while process.poll() is None and self.rows(results) < step and time.monotonic() < give_up:
            time.sleep(POLL_S)
        process.kill()
        if process.wait() != -signal.SIGKILL or self.rows(results) < step:
            said = (self.folder / f"{results}.txt").read_text()
            sys.exit(f"it was not killed after step {step}:\n{said}")
        return self.rows(results)

    def rows(self, results: str) -> int:
        run = self.run_dir(results)
        log = run / "metrics.jsonl" if run else None
        return log.read_bytes().count(b"\n") if log and log.is_file() else 0


def main() -> int:
    parser = CommandParser(
        prog="python benchmarks/gpu_resume.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--optimizer", choices=names(), default="powerstep_int8")
    parser.add_argument("--layers", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--no-deterministic", action="store_true")
    parser.add_argument("--cold", action="store_true", help="resume with an empty compiler cache")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal, not compiled"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the kill's step; default: any")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device here; --device cpu rehearses without one")
    if args.steps < LEAST_STEPS:
        raise UserError(f"--steps is {args.steps}; it must be at least {LEAST_STEPS}")

    folder = (args.folder or Path(tempfile.mkdtemp(prefix="gpu-resume-"))).absolute()
    write_tokens(folder / "tokens")
    trainings = Trainings(folder, args)
    kill_at = random.Random(args.seed).randint(CHECKPOINT_INTERVAL + 1, args.steps - BEFORE_THE_END)
    cold = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cold")} if args.cold else {}
    straight_s = trainings.finish("straight")
    killed_after = trainings.kill_after("resumed", kill_at)
    resumed_s = trainings.finish("resumed", **cold)

    runs = [trainings.run_dir(results) for results in ("straight", "resumed")]
    straight, resumed = map(left, runs)
    found = differences(straight, resumed)
    rows = [name for name in straight if name.startswith("row.") and name.endswith(".train_loss")]
    report = {
        "equal": not found,
        "differing": len(found),
        "examples": found[:12],
        "compared": {
            "rows": len(rows),
            "tensors": sum(isinstance(value, torch.Tensor) for value in straight.values()),
            "final_val_loss": [each["outcome.final_val_loss"] for each in (straight, resumed)],
        },
        "killed_after_step": killed_after,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "deterministic": not args.no_deterministic,
        "cold_cache": args.cold,
        "optimizer": args.optimizer,
        "layers": args.layers,
        "steps": args.steps,
        "seconds": {"straight": straight_s, "resumed": resumed_s},
    }
    print(json.dumps(report, indent=2))
    return 0 if report["equal"] else 1


if __name__ == "__main__":
    exit_on_user_error(main)
