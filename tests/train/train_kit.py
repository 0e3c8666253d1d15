"""The train command in processes of its own, from a fork server that has torch loaded."""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 60
TIMING = ("step_ms", "tokens_per_s")
SMALL = (
    *("model.layers=1", "model.hidden=16", "model.heads=2"),
    *("batch=4", "context=16", "steps=12", "eval_windows=4", "eval_interval=5", "device=cpu"),
)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch._dynamo", "powerstep_repro.train"])


def _command(arguments: list[str], cwd: str, environment: dict, output: str, read: bool) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if not read:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    os.chdir(cwd)
    os.environ.update(environment, OMP_NUM_THREADS="1")
    sys.argv = ["train", *arguments]

    import torch

    from powerstep_repro.errors import exit_on_user_error
    from powerstep_repro.train import main

    torch.set_num_threads(1)
    exit_on_user_error(main)


class Command:
    """``python -m powerstep_repro.train`` with small settings, in a folder of its own."""

    def __init__(self, folder: Path, data: Path):
        self.folder, self.data = folder, data
        self.output = folder / "output.txt"

    def start(self, *overrides: str, small: bool = True, read: bool = True, **environment: str):
        """Start it; ``read`` says whether what it prints has a reader."""
        settings = [*SMALL, "data=text", f"data.path={self.data}"] if small else []
        self.output.unlink(missing_ok=True)
        process = _context.Process(
            target=_command,
            args=([*settings, *overrides], str(self.folder), environment, str(self.output), read),
        )
        process.start()
        return process

    def __call__(self, *overrides: str, **how: Any) -> int:
        """Run to the end, started as :meth:`start` does; returns the exit code."""
        process = self.start(*overrides, **how)
        process.join(PATIENCE_S)
        assert process.exitcode is not None, self.said
        return process.exitcode

    @property
    def said(self) -> str:
        return self.output.read_text()

    @property
    def runs(self) -> list[Path]:
        return sorted(self.folder.glob("results/tiny/runs/*"))

    @property
    def run(self) -> Path:
        (run,) = self.runs
        return run


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def rows(run: Path) -> list[dict]:
    """The log without what differs from one computer's moment to the next."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMING} for row in found]


def wait_for_rows(command: Command, count: int) -> None:
    """Wait until a run in another process has logged so many rows."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        logs = list(command.folder.glob("results/tiny/runs/*/metrics.jsonl"))
        if logs and logs[0].read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"no {count} rows: {command.said}")
