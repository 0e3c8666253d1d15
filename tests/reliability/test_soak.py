"""Guards a sweep under fire: a random process of it, a training or the sweep itself, is killed
again and again, and every run leaves what it leaves in peace, to the last bit.
"""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import yaml
from reliability_kit import SMALL, differences, left, rows

from powerstep_repro.config import ROOT, choices

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the sweep's processes by ps"),
]
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PATIENCE_S = 1200


def start(folder, text, results) -> subprocess.Popen:
    """Start the sweep; its output goes to a file."""
    places = (f"data.path={text}", f"data_dir={folder}/data", f"results_dir={folder}/{results}")
    with open(folder / f"{results}.txt", "ab") as output:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "powerstep_repro.sweep", str(folder / "soak.yaml")),
                *(*SMALL, "steps=40", "data=text", *places),
                *("--workers", "2", "--retries", "1000"),
            ],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def processes_of(sweep: int) -> list[int]:
    """The sweep's process and the trainings that it has started."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    return [sweep, *(pid for pid, parent in pairs if parent == sweep)]


def test_a_sweep_under_fire_ends_as_one_in_peace(tmp_path, text):
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random.Random({seed})")
    chance = random.Random(seed)
    grids = [
        {"optimizer": choices("optimizer")[:6], "model.dropout": [0.1]},
        {"optimizer": ["signsgd"], "lr": [1e30], "grad_clip": [0], "warmup_steps": [0]},  # diverges
    ]
    (tmp_path / "soak.yaml").write_text(yaml.safe_dump({"runs": [{"grid": g} for g in grids]}))
    began = time.monotonic()
    assert start(tmp_path, text, "quiet").wait(PATIENCE_S) == 0
    # As long apart as two runs in peace: a busy machine needs that to get anywhere.
    every = (time.monotonic() - began) / 7

    sweep, kills, give_up = start(tmp_path, text, "soaked"), 0, time.monotonic() + PATIENCE_S
    while True:
        try:
            code = sweep.wait(timeout=chance.expovariate(1 / every))
        except subprocess.TimeoutExpired:
            pid = chance.choice(processes_of(sweep.pid))
            if time.monotonic() > give_up:
                sweep.kill()
                pytest.fail((tmp_path / "soaked.txt").read_text())
            try:
                os.kill(pid, chance.choice(SIGNALS))
                kills += 1
            except ProcessLookupError:  # it has just ended
                continue
        else:
            if code in (0, 1):
                break
            sweep = start(tmp_path, text, "soaked")  # it was the sweep that was hit
    assert code == 0, (tmp_path / "soaked.txt").read_text()
    assert kills

    quiet, soaked = (
        # A run that diverges at once leaves neither windows nor a checkpoint.
        {
            run.name: left(run) if (run / "windows.json").exists() else rows(run)
            for run in (tmp_path / which / "tiny/runs").glob("[!.]*")
        }
        for which in ("quiet", "soaked")
    )
    assert len(quiet) == 7
    assert not differences(quiet, soaked)
    assert not list((tmp_path / "soaked").rglob("*.tmp"))
