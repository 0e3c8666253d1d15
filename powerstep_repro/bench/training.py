"""Tokens a second of training: this project's trainer, and nanoGPT's own loop beside it."""

import gc
import itertools
import json
import pickle
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanogpt.data import TokenData
from nanogpt.errors import OutOfMemory
from nanogpt.loop import train
from nanogpt.model import GPT, GPTConfig
from nanogpt.runtime import Runtime, seeded
from nanogpt.settings import Settings
from nanogpt.signals import obey
from powerstep_repro.bench.optimizers import MODELS
from powerstep_repro.bench.timing import ROUNDS, device_name
from powerstep_repro.errors import UserError
from powerstep_repro.optim import create_for_model
from powerstep_repro.utilisation import peak_flops

WARMUP_STEPS = 5
TOKENS = 4_000_000


@dataclass(frozen=True)
class Job:
    """One way to train.

    Args:
        who: The trainer, "this project" or "nanoGPT".
        model: Name of one of ``MODELS``.
        optimizer: Name in the registry.
        precision: "amp_bf16", "bf16" or "fp32".
        batch: Sequences a step, over all ranks.
        micro: Sequences of one forward pass.
        context: Tokens a sequence.
        steps: Steps timed, after ``WARMUP_STEPS``.
        compile: Whether the model is compiled.
    """

    who: str
    model: str
    optimizer: str
    precision: str
    batch: int
    micro: int
    context: int
    steps: int
    compile: bool

    @property
    def shape(self) -> GPTConfig:
        """The model's shape, at this context."""
        return GPTConfig(**asdict(MODELS[self.model]) | {"context": self.context})


def bench_training(
    jobs: Sequence[Job],
    device: torch.device,
    nanogpt: Path | None,
    tell: Callable[[dict], None] = lambda _: None,
) -> dict:
    """Train for a few steps in each way.

    Args:
        jobs: What to time. Under ``torchrun`` all ranks take part, and none may be nanoGPT's.
        device: Where.
        nanogpt: A clone of nanoGPT, whose ``train.py`` runs at the numbers of its jobs.
        tell: Gets what there is after each job: one takes a minute or more.

    Returns:
        ``rows``, one a job: tokens a second of each round and their median, MFU, parameters; or
        why it ``failed``.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for job in jobs:
            data = _random_tokens(Path(scratch) / str(job.shape.vocab_size), job.shape.vocab_size)
            try:
                if job.who == "nanoGPT":
                    times = _nanogpt(job, device, data, nanogpt)
                else:
                    times = _ours(job, device, data)
                rows.append(_row(job, device, times))
            except OutOfMemory:  # a micro-batch too large for the card; others may fit
                rows.append(asdict(job) | {"failed": "out of memory"})
            except UserError as error:  # one way that fails must not end the others
                rows.append(asdict(job) | {"failed": str(error)})
            _release_memory(device)
            tell({"rows": rows})
    return {"rows": rows}


def _row(job: Job, device: torch.device, seconds: list[float]) -> dict[str, Any]:
    """Return a row from the seconds of each step."""
    part = len(seconds) // ROUNDS
    rounds = [statistics.median(seconds[i * part : (i + 1) * part]) for i in range(ROUNDS)]
    rates = [job.batch * job.context / s for s in rounds]
    with torch.device("meta"):
        model = GPT(job.shape)
    rate = statistics.median(rates)
    peak = peak_flops(device_name(device), job.precision)
    world = Runtime().world
    return asdict(job) | {
        "params": model.n_params(),
        "world": world,
        "tokens_per_s": rate,
        "tokens_per_s_rounds": rates,
        "step_ms": 1e3 * statistics.median(rounds),
        "mfu": peak and rate * model.flops_per_token(job.context) / peak / world,
    }


class _Clock:
    """A recorder that only looks at the time; a row is logged when its step has ended."""

    def __init__(self):
        self.times: list[float] = []

    def resume(self, step: int) -> None:
        """Nothing to forget."""

    def log(self, row: dict[str, Any]) -> None:
        """A step has ended."""
        self.times.append(time.perf_counter())

    def windows(self, step: int, losses: list[float]) -> None:
        """The last step's time includes an evaluation; it is not counted."""


def _ours(job: Job, device: torch.device, folder: Path) -> list[float]:
    clock = _Clock()
    with Runtime(device.type, job.precision, compile=job.compile) as runtime:
        seeded(0)
        model = runtime.place(GPT(job.shape))
        before = [p.detach().double().sum().item() for p in model.parameters()]
        optimizer = create_for_model(job.optimizer, model, lr=1e-4, weight_decay=0.1)
        settings = Settings(
            steps=WARMUP_STEPS + job.steps + 1,
            batch=job.batch,
            context=job.context,
            micro_batch=job.micro,
            lr=1e-4,
            eval_windows=1,
        )
        data = TokenData.open(folder)
        recorder = clock if runtime.is_main else None
        result = train(
            settings, model=model, optimizer=optimizer, data=data, runtime=runtime,
            recorder=recorder,
        )  # fmt: skip
        obey(result.signal)
        if result.status != "finished":
            raise UserError(f"{job}: the run {result.status} at step {result.diverged_at}")
        after = [p.detach().double().sum().item() for p in model.parameters()]
    if any(a == b for a, b in zip(before, after, strict=True)):
        raise UserError(f"{job}: weights did not change")
    seconds = [b - a for a, b in itertools.pairwise(clock.times)]
    return seconds[WARMUP_STEPS - 1 : -1] if seconds else [float("nan")] * ROUNDS


def _release_memory(device: torch.device) -> None:
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _nanogpt(job: Job, device: torch.device, folder: Path, clone: Path) -> list[float]:
    """Run nanoGPT's train.py as it is, with settings from the command line; read its times."""
    shape = job.shape
    values = {
        "dataset": folder,  # joined to "data", an absolute path stays itself
        "out_dir": folder / "out",
        "eval_interval": 10**9,
        "eval_iters": 1,
        "log_interval": 1,
        "max_iters": WARMUP_STEPS + job.steps,
        "batch_size": job.micro,
        "gradient_accumulation_steps": job.batch // job.micro,
        "block_size": job.context,
        "n_layer": shape.n_layer,
        "n_head": shape.n_head,
        "n_embd": shape.n_embd,
        "learning_rate": 1e-4,
        "device": device.type,
        "dtype": "float32" if job.precision == "fp32" else "bfloat16",
        "compile": job.compile,
    }
    command = [sys.executable, "train.py", *(f"--{k}={v}" for k, v in values.items())]
    run = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    times = re.findall(r"^iter \d+: .*time ([\d.]+)ms", run.stdout, re.M)
    if "OutOfMemoryError" in run.stderr:
        raise OutOfMemory(f"nanoGPT's train.py ran out of memory at batch_size {job.micro}")
    if run.returncode or len(times) <= WARMUP_STEPS:
        last = (run.stderr.strip().splitlines() or ["without a word"])[-1]
        raise UserError(f"nanoGPT's train.py failed: {last}")
    return [float(ms) / 1e3 for ms in times[WARMUP_STEPS:]]


def _random_tokens(folder: Path, vocab_size: int) -> Path:
    """Write token files that both trainers read; speed does not depend on what they say."""
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, count in (("train", TOKENS), ("val", TOKENS // 10)):
        rng.integers(0, vocab_size, count, dtype=np.uint16).tofile(folder / f"{split}.bin")
    meta = {
        "format": 1,
        "name": "random",
        "dtype": "uint16",
        "vocab_size": vocab_size,
        "tokenizer": "none",
        "train_tokens": TOKENS,
        "val_tokens": TOKENS // 10,
        "train_sha256": "0" * 64,
        "val_sha256": "0" * 64,
        "hash": "0" * 16,
        "source": {},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocab_size}))
    return folder
