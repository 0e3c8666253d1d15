"""Training runs in processes of their own, and the accidents that can be made to happen in one.

Processes come from a fork server that has torch loaded, so that one costs a tenth of a second.
An accident is a function that is called in the process before it trains, with its end of a pipe.
"""

import errno
import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pandas as pd
import torch

from powerstep_repro.config import compose

PATIENCE_S = 120
TIMING = ("step_ms", "tokens_per_s")
SMALL = (
    *("model.layers=1", "model.hidden=16", "model.heads=2", "batch=4", "context=16", "steps=12"),
    *("eval_windows=4", "eval_interval=4", "checkpoint_interval=3", "device=cpu"),
)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        *("torch._dynamo", "powerstep_repro.train", "powerstep_repro.runs.record", "nanogpt.loop"),
        *("powerstep_repro.data.text", "powerstep_repro.models.gpt2", "powerstep_repro.optim"),
        "powerstep_repro.models.qwen3_moe",
        *("powerstep_repro.progress", "powerstep_repro.runs.provenance", "pyarrow.parquet"),
    ]
)


class Harness:
    """The train command's own function, ``run``, in a folder; small settings unless overridden.

    Args:
        folder: Where runs and the processes' output go.
        text: The text to train on; what is made of it goes beside it.
    """

    def __init__(self, folder: Path, text: Path):
        self.folder, self.text = folder, text
        self.output = folder / "output.txt"

    def start(self, *runs: tuple[str, ...], accident=None) -> "Child":
        """Start a process that trains the runs, each given by its overrides."""
        data = ("data=text", f"data.path={self.text}", f"data_dir={self.text.parent}/data")
        settings = [*SMALL, *data]
        # Composed here, where Hydra's part is done once for all of them.
        return Child(self.folder, [compose([*settings, *each]) for each in runs], accident)

    def __call__(self, *overrides: str, accident=None) -> int:
        """Train one run to its end; returns the exit code."""
        self.output.unlink(missing_ok=True)
        return self.start(overrides, accident=accident).end()

    @property
    def said(self) -> str:
        return self.output.read_text()

    def runs(self, results: str = "results") -> list[Path]:
        return sorted(self.folder.glob(f"{results}/tiny/runs/*"))

    def run(self, results: str = "results") -> Path:
        (found,) = self.runs(results)
        return found


class Child:
    """A process that trains; ``pipe`` leads to the accident in it."""

    def __init__(self, *arguments):
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_train, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def hear(self):
        """Wait for a word from the accident; None if the process ended instead."""
        if not self.pipe.poll(PATIENCE_S):
            self.process.kill()
            raise TimeoutError(f"no word from the process for {PATIENCE_S} s")
        try:
            return self.pipe.recv()
        except EOFError:
            return None

    def end(self) -> int:
        """Wait for the process; returns its exit code."""
        self.process.join(PATIENCE_S)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"the process is still there after {PATIENCE_S} s")
        return self.process.exitcode


def _train(pipe, folder: Path, configs: list[dict], accident) -> None:
    os.chdir(folder)
    descriptor = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    torch.set_num_threads(1)
    from powerstep_repro.errors import exit_on_user_error
    from powerstep_repro.train import run

    if accident:
        accident(pipe)
    exit_on_user_error(lambda: max(map(run, configs)))


# Accidents; ``functools.partial`` fills in all but the pipe.


def hold(first: int, last: int, pipe) -> None:
    """Tell when step ``first`` is logged, and wait after step ``last`` for ever."""
    from powerstep_repro.runs.record import Recorder

    log = Recorder.log

    def log_and_tell(self, row):
        log(self, row)
        if row["step"] == first:
            pipe.send(first)
        if row["step"] == last:
            signal.pause()

    Recorder.log = log_and_tell


def at_checkpoint(stage: str, piece: int, act, pipe) -> None:
    """Do something the ``piece``-th time that the writing of checkpoints comes to ``stage``."""
    from nanogpt.checkpoint import _HashingFile

    write, replace, seen = _HashingFile.write, os.replace, []

    def come_to(now):
        seen.append(now)
        if now == stage and seen.count(stage) == piece:
            act()

    def watched_write(self, data):
        come_to("writing")
        return write(self, data)

    def watched_replace(source, target):
        ours = str(target).endswith(".pt")
        if ours:
            come_to("written")
        replace(source, target)
        if ours:
            come_to("renamed")

    _HashingFile.write, os.replace = watched_write, watched_replace


def at_file_act(number: int, act, pipe) -> None:
    """Do something at the n-th opening, renaming, making or removing of a file of the run."""
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.truncate") and (
            "results" in str(arguments[0])
        ):
            seen += 1
            if seen == number:
                act()

    sys.addaudithook(hook)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# What a run left, and how two of them differ.


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def rows(run: Path) -> list[dict]:
    """The log as it stands, without what differs from one moment to the next."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in found]


def checkpoints(run: Path) -> dict[int, Path]:
    """The finished checkpoint files by step."""
    return {int(path.name[5:13]): path for path in sorted(run.glob("checkpoints/step-*-*.pt"))}


def newest_state(run: Path) -> dict:
    return torch.load(max(checkpoints(run).items())[1], weights_only=True)


def left(run: Path) -> dict:
    """All that a finished run leaves, apart from times and places."""
    outcome = ("status", "steps", "final_val_loss", "final_train_loss", "diverged_at")
    outcome += ("blown_up_at", "n_params", "optimizer_state_bytes")
    parquet = pd.read_parquet(run / "metrics.parquet").drop(columns=list(TIMING))
    return {
        "rows": rows(run),
        "parquet": parquet.to_csv(index=False, float_format="%.17g"),
        "windows": json.loads((run / "windows.json").read_text()),
        "summary": {key: summary(run)[key] for key in outcome},
        "checkpoint": newest_state(run) if checkpoints(run) else None,
    }


def differences(a, b, where="run") -> list[str]:
    """Name everything in which two nested values differ, to the last bit and dtype."""
    if type(a) is not type(b):
        return [f"{where}: {type(a).__name__} and {type(b).__name__}"]
    if isinstance(a, dict):
        keys = list(dict.fromkeys([*a, *b]))
        lacking = [f"{where}.{key} is in one only" for key in keys if (key in a) != (key in b)]
        return lacking + [
            line
            for key in keys
            if key in a and key in b
            for line in differences(a[key], b[key], f"{where}.{key}")
        ]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{where}: {len(a)} and {len(b)} entries"]
        return [
            line
            for i, (x, y) in enumerate(zip(a, b, strict=True))
            for line in differences(x, y, f"{where}[{i}]")
        ]
    if isinstance(a, torch.Tensor):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return [] if alike and _bits(a) == _bits(b) else [f"{where}: tensors differ"]
    return [] if a == b or (a != a and b != b) else [f"{where}: {a!r} and {b!r}"]


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
