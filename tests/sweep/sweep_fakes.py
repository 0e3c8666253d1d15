"""What the tests of the sweep share: entries that a fake train command trains.

Run as a file, it is a sweep of its own that a test can signal:
``sweep_fakes.py FOLDER WORKERS RUNS key=value...``.
"""

import io
import json
import sys
from pathlib import Path

from rich.console import Console

from powerstep_repro.sweep.local import Pool
from powerstep_repro.sweep.overview import Overview
from powerstep_repro.sweep.plan import DONE, Entry, work_order
from powerstep_repro.sweep.resources import Worker

FAKE = str(Path(__file__).with_name("fake_train.py"))


def entry(folder, name, *overrides, **config):
    """A run named ``name`` under ``folder``; overrides go to the fake train command."""
    steps = next((int(o[6:]) for o in overrides if o.startswith("steps=")), 5)
    config = {
        "profile": "tiny",
        "model": {"name": "gpt2_small"},
        "optimizer": {"name": "adamw"},
        "data": {"name": "text"},
        "lr": 1e-3,
        "seed": 1,
        "device": "cpu",
        "steps": steps,
    } | config
    return Entry(tuple(overrides), config, Path(folder) / name)


def command(entry, processes):
    """Instead of the train command; ``-S`` keeps its start short."""
    return [sys.executable, "-IS", FAKE, str(entry.run_dir), *entry.overrides]


def sweep(entries, workers=2, gpus=(), out=None, **options):
    """Train entries with the fake command; returns the outcome and what was printed."""
    for each in entries:
        each.refresh()
    places = [Worker(i, (gpu,)) for i, gpu in enumerate(gpus)] or [
        Worker(i, threads=1) for i in range(workers)
    ]
    out = out or io.StringIO()
    todo = work_order(entries)
    overview = Overview(len(entries), len(entries) - len(todo), Console(file=out, width=200))
    outcome = Pool(todo, places, overview, command=command, **options).run()
    return outcome, out


def events(folder, event=None):
    """What the fake train commands wrote down, in order."""
    path = Path(folder) / "events.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if event in (None, row["event"])]


def main(folder, workers, runs, *overrides):
    """A whole sweep as a process; its exit code is the sweep's."""
    entries = [entry(folder, f"run{i}", *overrides) for i in range(int(runs))]
    outcome, _ = sweep(entries, int(workers), out=sys.stdout)
    # Where two sweeps race, the later one may find runs done already when it plans.
    done = sum(each.state == DONE for each in entries)
    print(done, "done", len(outcome.failed), "failed", len(outcome.left), "left")
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
