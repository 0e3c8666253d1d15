"""Stands in for the train command in tests of what runs it: same record, same signals, no torch.

usage: fake_train.py RUN_DIR [key=value ...] with steps, pause (seconds a step), mode (ok, fail,
diverge, deaf: ignores SIGTERM) and save (steps between two checkpoints).
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

run_dir = Path(sys.argv[1])
options = dict(argument.split("=", 1) for argument in sys.argv[2:] if "=" in argument)
steps = int(options.get("steps", 5))
pause = float(options.get("pause", 0.02))
mode = options.get("mode", "ok")
save = int(options.get("save", 1))
received = []


def write(**fields):
    temporary = run_dir / f"summary.{os.getpid()}.tmp"
    temporary.write_text(json.dumps(fields))
    temporary.replace(run_dir / "summary.json")


def note(event, **fields):
    with open(run_dir.parent / "events.jsonl", "a") as file:
        file.write(
            json.dumps({"event": event, "run": run_dir.name, "t": time.time(), **fields}) + "\n"
        )


def train():
    start = int((run_dir / "saved").read_text()) if (run_dir / "saved").exists() else 0
    write(status="running", steps=start)
    environment = {key: os.environ.get(key) for key in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")}
    note("start", step=start, pid=os.getpid(), **environment)
    for step in range(start + 1, steps + 1):
        time.sleep(pause)
        with open(run_dir / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "train_loss": 5.0 / step}) + "\n")
        if mode == "fail":
            write(status="failed", steps=step)
            print("error: made to fail")
            return 1
        if mode == "diverge":
            write(status="diverged", steps=step, diverged_at=step)
            return 0
        if received or step % save == 0:
            (run_dir / "saved.tmp").write_text(str(step))
            (run_dir / "saved.tmp").replace(run_dir / "saved")
        if received:
            time.sleep(pause)
            write(status="interrupted", steps=step)
            return 128 + received[0]
    write(status="finished", steps=steps, final_val_loss=1.25, wall_s=steps * pause)
    return 0


if mode != "deaf":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: received.append(number))
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
run_dir.mkdir(parents=True, exist_ok=True)
(run_dir / "config.yaml").write_text(
    "{profile: tiny, model: {name: gpt2_small}, optimizer: {name: adamw}, data: {name: text}, "
    "lr: 0.001, seed: 1, steps: 5}"
)
with open(run_dir / ".lock", "a+") as lock:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"error: {run_dir} is being written by another process")
    code = train()
    note("end", code=code)
sys.exit(code)
