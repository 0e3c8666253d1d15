"""A sweep under fire: kill a random process every few seconds, and compare with a quiet sweep.

Trains one sweep of tiny runs twice with the sweep command: once in peace, once while this script
kills one of its processes again and again, a training or the sweep itself, by SIGKILL, SIGTERM or
SIGINT; a sweep that was killed is started again. In the end all runs must have ended, and every
one must have left what it left in peace: each row of the log (timing aside), the last evaluation,
the outcome, weights and optimizer state, to the last bit.

    python benchmarks/soak.py [--runs 40] [--steps 60] [--every 4] [--workers 2] [--folder DIR]

Prints the figures as JSON. Exit code: 0 if everything is equal, 1 otherwise.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import yaml
from compare_runs import differences, left

from powerstep_repro.config import choices
from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error

SETTINGS = (
    *("profile=tiny", "data=builtin", "device=cpu", "model.layers=1", "model.hidden=32"),
    *("model.heads=2", "model.dropout=0.1", "batch=4", "context=32", "eval_windows=8"),
    *("eval_interval=10", "checkpoint_interval=5"),
)
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PATIENCE_S = 3600


def write_sweep(path: Path, runs: int) -> None:
    """Every optimizer with several seeds, and one run that diverges: a result like any other."""
    optimizers = choices("optimizer")
    seeds, rest = divmod(runs - 1, len(optimizers))
    grids = [
        {"optimizer": optimizers, "seed": list(range(1, seeds + 1))},
        {"optimizer": optimizers[:rest], "seed": [seeds + 1]},
        {"optimizer": ["signsgd"], "lr": [1e30], "grad_clip": [0], "warmup_steps": [0]},
    ]
    grids = [{"grid": grid} for grid in grids if grid["optimizer"] and grid.get("seed") != []]
    path.write_text(yaml.safe_dump({"runs": grids}))


def start(folder: Path, results: str, steps: int, workers: int) -> subprocess.Popen:
    """Start the sweep; its output goes to a file."""
    places = (f"results_dir={folder / results}", f"data_dir={folder / 'data'}")
    options = ("--workers", str(workers), "--retries", "1000000")
    with open(folder / f"{results}.txt", "ab") as output:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "powerstep_repro.sweep", str(folder / "soak.yaml")),
                *(*SETTINGS, f"steps={steps}", *places, *options),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def processes_of(sweep: int) -> list[int]:
    """The sweep's process and the trainings that it has started."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = (map(int, line.split()) for line in listed.stdout.splitlines())
    # Not `ps` itself, which is a child of this script, not of the sweep.
    return [sweep, *(pid for pid, parent in pairs if parent == sweep)]


def soak(folder: Path, steps: int, workers: int, every: float, chance: random.Random) -> dict:
    """Train the sweep under fire until it says that all is done; returns what was fired."""
    kills, began = Counter(), time.monotonic()
    sweep, starts = start(folder, "soaked", steps, workers), 1
    while time.monotonic() - began < PATIENCE_S:
        try:
            code = sweep.wait(timeout=chance.expovariate(1 / every))
        except subprocess.TimeoutExpired:
            pid, number = chance.choice(processes_of(sweep.pid)), chance.choice(SIGNALS)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            target = "sweep" if pid == sweep.pid else "training"
            kills[f"{target} by {signal.Signals(number).name}"] += 1
        else:
            if code in (0, 1):
                break
            sweep, starts = start(folder, "soaked", steps, workers), starts + 1
    else:
        sweep.kill()
    return {
        "kills": sum(kills.values()),
        "kills_by_target": dict(sorted(kills.items())),
        "sweep_starts": starts,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = CommandParser(prog="python benchmarks/soak.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=60, help="of each run; default: %(default)s")
    parser.add_argument("--every", type=float, default=4.0, help="mean seconds between two kills")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--seed", type=int, default=None, help="of the kills; default: any")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    args = parser.parse_args()
    for option in ("runs", "steps", "workers"):
        if getattr(args, option) < 1:
            raise UserError(f"--{option} is {getattr(args, option)}; it must be at least 1")
    if not args.every > 0:
        raise UserError(f"--every is {args.every:g}; it must be more than 0 seconds")
    seed = int.from_bytes(os.urandom(4), "big") if args.seed is None else args.seed
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="soak-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_sweep(folder / "soak.yaml", args.runs)

    began = time.monotonic()
    code = start(folder, "quiet", args.steps, args.workers).wait()
    report = {"runs": args.runs, "steps": args.steps, "workers": args.workers, "seed": seed}
    report |= {"quiet_exit_code": code, "quiet_seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(report), file=sys.stderr, flush=True)
    report["fire"] = soak(folder, args.steps, args.workers, args.every, random.Random(seed))

    quiet, soaked = (
        {run.name: run for run in (folder / which / "tiny" / "runs").glob("[!.]*")}
        for which in ("quiet", "soaked")
    )
    equal, differing, starts = 0, {}, []
    for name in sorted(quiet | soaked):
        try:
            found = differences(left(quiet[name]), left(soaked[name]))
            starts.append(json.loads((soaked[name] / "summary.json").read_text())["starts"])
        except (KeyError, OSError) as error:
            found = [f"{type(error).__name__}: {error}"]
        equal += not found
        if found:
            differing[name] = found
    statuses = Counter(left(run)["outcome.status"] for run in quiet.values())
    report |= {
        "statuses": dict(statuses),
        "starts_of_a_run": {"most": max(starts, default=0), "all": sum(starts)},
        "equal": equal,
        "differing": differing,
        "left_over": [str(path) for path in (folder / "soaked").rglob("*.tmp")],
    }
    print(json.dumps(report, indent=2))
    return 0 if equal == args.runs and not report["left_over"] else 1


if __name__ == "__main__":
    exit_on_user_error(main)
