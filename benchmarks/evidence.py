"""Time and memory of figures, tables and report on logs the size of the paper's.

Writes about 200 synthetic runs of 50,000 logged steps to a temporary folder (three seeds of every
setting of the paper's sweeps, a few of them live with a jsonl alone), draws and writes everything
in fresh processes, and prints seconds and peak memory of each.

    python benchmarks/evidence.py [--runs 200] [--steps 50000] [--folder DIR]
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from powerstep_repro.config import expand, run_name, with_data
from powerstep_repro.errors import CommandParser, UserError, exit_on_user_error

SWEEPS = ("small", "quant", "large", "lr", "stacey", "beta", "gamma", "lr_tuned")
FIGURES = ("spt", "small", "hyper", "quant", "large", "lr", "stacey")
LIVE = 3
WINDOWS = 1000


def write_run(folder: Path, config: dict, live: bool) -> None:
    """Write one run directory with a row for every step."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    rng = np.random.default_rng(abs(config["seed"] + int(config["lr"] * 1e7)))
    steps = np.arange(1, config["steps"] + 1)
    loss = 3 + 6 * np.exp(-10 * steps / config["steps"]) + rng.normal(0, 0.03, len(steps))
    columns = {
        "step": steps,
        "tokens": steps * config["batch"] * config["context"],
        "train_loss": loss,
        "lr": np.full(len(steps), config["lr"]),
        "grad_norm": rng.uniform(0.2, 1.0, len(steps)),
        "step_ms": rng.uniform(190, 210, len(steps)),
        "tokens_per_s": rng.uniform(4.9e5, 5.1e5, len(steps)),
        "val_loss": np.where(steps % 1000 == 0, loss, np.nan),
    }
    if live:
        with open(folder / "metrics.jsonl", "w") as log:
            for row in zip(*(c.tolist() for c in columns.values()), strict=True):
                log.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")
    else:
        pq.write_table(pa.table(columns), folder / "metrics.parquet", compression="zstd")
    windows = 3 + rng.normal(0, 0.5, WINDOWS)
    (folder / "windows.json").write_text(
        json.dumps({"step": config["steps"], "losses": windows.tolist()})
    )
    summary = {
        "status": "running" if live else "finished",
        "steps": config["steps"],
        "final_val_loss": None if live else float(windows.mean()),
        "wall_s": 1e5,
        "device": "synthetic",
        "n_params": 10**8,
        "optimizer_state_bytes": 4 * 10**8,
        "peak_memory_bytes": 2**34,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def write_all(results: Path, overrides: list[str], count: int) -> int:
    """Write seeds of all settings until there are enough runs; returns how many."""
    configs = {}
    for seed in range(1, 100):
        for sweep in SWEEPS:
            for plan in expand(sweep, ["profile=paper", *overrides]):
                config = with_data({**plan.config, "seed": seed}, "0" * 16, "synthetic")
                if len(configs) < count:
                    configs.setdefault(run_name(config), config)
        if len(configs) >= count:
            break
    for number, (name, config) in enumerate(configs.items()):
        write_run(results / "paper" / "runs" / name, config, live=number < LIVE)
    return len(configs)


def timed(arguments: list[str]) -> tuple[float, float, float]:
    """Run a command in a process of its own; returns wall and CPU seconds, peak MiB."""
    code = (
        "import resource, runpy, sys\n"
        "sys.argv = sys.argv[1:]\n"
        "try:\n    runpy.run_module(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "use = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print('USED', use.ru_utime + use.ru_stime, use.ru_maxrss // 1024)\n"
    )
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    cpu, peak = done.stdout.rsplit("USED ", 1)[1].split()
    return time.perf_counter() - begin, float(cpu), float(peak)


def main() -> None:
    parser = CommandParser(
        prog="python benchmarks/evidence.py", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--folder", type=Path, help="where runs are kept, and used if there")
    options = parser.parse_args()
    for option in ("runs", "steps"):
        if getattr(options, option) < 1:
            raise UserError(f"--{option} is {getattr(options, option)}; it must be at least 1")
    with tempfile.TemporaryDirectory() as temporary:
        results = options.folder or Path(temporary)
        overrides = [f"steps={options.steps}", "log_interval=1"]
        if not (results / "paper").exists():
            begin = time.perf_counter()
            count = write_all(results, overrides, options.runs)
            seconds = time.perf_counter() - begin
            print(f"wrote {count} runs of {options.steps:,} steps in {seconds:.0f} s")
        common = ["profile=paper", f"results_dir={results}", *overrides]
        jobs = [(f"plot {name}", ["powerstep_repro.plot", name, *common]) for name in FIGURES]
        jobs.append(("plot all", ["powerstep_repro.plot", "all", *common]))
        jobs.append(("table all", ["powerstep_repro.table", "all", *common]))
        jobs.append(("report", ["powerstep_repro.report", *common]))
        for name, arguments in jobs:
            wall, cpu, peak = timed(arguments)
            print(f"{name:12s} {wall:6.1f} s  {cpu:6.1f} s of CPU  {peak:6.0f} MiB", flush=True)


if __name__ == "__main__":
    exit_on_user_error(main)
