"""How far a run repeats itself: its first steps trained again, held against the original's.

The run's own config is trained, the schedule of all its steps included, with the train command,
which is stopped by a signal once the step is logged.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from powerstep_repro.config import (
    choices,
    compose,
    differing_keys,
    flatten,
    identity_view,
    is_path,
    run_dir,
    with_data,
)
from powerstep_repro.data import resolve
from powerstep_repro.errors import CommandParser, UserError
from powerstep_repro.runs import Loaded, load
from powerstep_repro.runs.files import CONFIG, read_rows, write_whole

POLL_S = 0.2
SAVE_S = 120  # for the checkpoint that the train command writes when it is told to stop
ANSWERS = {"yes": True, "no": False}


def load_one(folder: Path) -> tuple[Loaded, str]:
    """Read one run directory; returns what was found and the run's name."""
    loaded = load(folder)
    if not (folder / CONFIG).is_file() or not loaded.configs:
        reason = loaded.problems[0] if loaded.problems else "it holds no config.yaml of its own"
        raise UserError(f"{folder} is no run directory: {reason}")
    return loaded, next(iter(loaded.configs))


def check_identity(original: dict[str, Any], rerun: dict[str, Any]) -> None:
    """Refuse two configs of different runs, naming the keys in which they differ."""
    if differ := differing_keys(identity_view(original), identity_view(rerun)):
        raise UserError(f"the two are not the same run: they differ in {', '.join(differ)}")


def overrides_of(config: dict[str, Any]) -> list[str]:
    """The command-line overrides that compose to a run's recorded config, apart from places."""
    kind, name = config["data"].get("kind"), config["data"]["name"]
    groups = [
        f"profile={config['profile']}",
        f"model={config['model']['name']}",
        f"optimizer={config['optimizer']['name']}",
        f"data={kind if kind in choices('data') else name}",
    ]
    base = dict(flatten(compose(groups)))
    elsewhere = ("results_dir", "data_dir", "data.hash")
    values = [
        f"{key}={_text(key, value)}"
        for key, value in flatten(config)
        if key not in elsewhere and not key.startswith("logger.") and base.get(key, ...) != value
    ]
    return groups + values


def _text(key: str, value: Any) -> str:
    is_a_path = isinstance(value, str) and is_path(key, value)
    return value if is_a_path else json.dumps(value, ensure_ascii=False)


def train_until(config: dict[str, Any], step: int, places: Iterable[str]) -> Path:
    """Train a recorded config until ``step`` is logged, then stop it.

    Args:
        config: As the original recorded it.
        step: Counted from 1.
        places: Overrides of where files lie.

    Returns:
        The rerun's directory.
    """
    overrides = [*overrides_of(config), *places]
    planned = with_data(compose(overrides), config["data"]["hash"], config["data"]["name"])
    check_identity(config, planned)
    # Other data would train into another directory, to the end.
    found = resolve(planned["data"], planned["data_dir"]).hash
    if found != config["data"]["hash"]:
        raise UserError(f"the data there has the hash {found}, the run's {config['data']['hash']}")
    folder = Path(run_dir(planned))

    def reached() -> bool:
        return max((row["step"] for row in read_rows(folder)), default=0) >= step

    if reached():
        return folder
    print(f"training {folder} until step {step}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "powerstep_repro.train", *overrides])
    try:
        while process.poll() is None and not reached():
            time.sleep(POLL_S)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(SAVE_S)
    finally:
        process.kill()
    if not reached():
        raise UserError(f"{folder} did not reach step {step}: training ended with {process.wait()}")
    return folder


def compare(original: Path, rerun: Path, step: int, same_card: bool | None = None) -> dict:
    """Hold a rerun's training losses against the original's, from the first to ``step``.

    Args:
        original: A run directory.
        rerun: Another of the same run, perhaps interrupted after ``step``.
        step: Counted from 1.
        same_card: Whether both ran on one and the same card, where the records do not tell; None:
            not known.

    Returns:
        Plain values; differences are null if a loss is not finite in one of the two alone.
    """
    (first, name), (second, again) = load_one(original), load_one(rerun)
    check_identity(first.configs[name], second.configs[again])
    columns = []
    for loaded, run, folder in ((first, name, original), (second, again, rerun)):
        losses = loaded.history(run, ["step", "train_loss"]).set_index("step")["train_loss"]
        if step not in losses.index:
            last = losses.index.max() if len(losses) else 0
            raise UserError(f"{folder} has no row of step {step}: its last is of step {last}")
        columns.append(losses[losses.index <= step])
    steps = columns[0].index.intersection(columns[1].index)
    a, b = (column[steps].to_numpy(float) for column in columns)
    differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    gaps = np.where(differ, np.abs(a - b), 0.0)
    facts = [
        [loaded.runs[key].iloc[0] if key in loaded.runs else None for loaded in (first, second)]
        for key in ("device", "device_uuid", "git_revision", "versions.torch")
    ]
    devices, cards, revisions, versions = (
        [v if isinstance(v, str) else None for v in pair] for pair in facts
    )
    if all(cards):
        same_card = cards[0] == cards[1]
    elif devices[0] != devices[1]:
        same_card = False
    return {
        "run": name,
        "step": step,
        "device": " and ".join(dict.fromkeys(str(device) for device in devices)),
        "same_card": same_card,
        "train_loss": [_finite(a[-1]), _finite(b[-1])],
        "max_abs_diff": _finite(gaps.max()),
        "mean_abs_diff": _finite(gaps.mean()),
        "steps_compared": len(steps),
        "first_differing_step": int(steps[differ][0]) if differ.any() else None,
        "revisions": revisions,
        "torch": versions,
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


EPILOG = """\
Writes JSON to <profile>/reruns/<run>.json beside the runs: the training loss of both at the step,
the largest and the mean difference up to it, the first step that differs. Whether both ran on one
card is known from its identity where the summaries record it; --same-card says it for those that
do not.

examples:
  python -m powerstep_repro.bench rerun RUN --step 200 --data-path FOLDER --same-card yes
  python -m powerstep_repro.bench rerun RUN --against RERUN
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Train a run's first steps again, or read a rerun, and compare; returns the exit code."""
    parser = CommandParser(
        prog="python -m powerstep_repro.bench rerun",
        description=__doc__.partition("\n")[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="the original's directory")
    parser.add_argument("--step", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--against", type=Path, metavar="RERUN", help="train nothing, read this")
    parser.add_argument("--data-path", help="where the data lies now; default: as in the config")
    parser.add_argument("--data-dir", default="data", help="default: %(default)s")
    parser.add_argument(
        "--results-dir", help="where to train, and keep what was trained; default: nowhere"
    )
    parser.add_argument("--same-card", choices=ANSWERS, help="whether it is the original's card")
    parser.add_argument("--out", type=Path, help="the JSON; default: reruns/ beside runs/")
    args = parser.parse_args(argv)
    if args.step < 1:
        raise UserError(f"--step is {args.step}: steps are counted from 1")
    loaded, name = load_one(args.run)
    with tempfile.TemporaryDirectory(prefix="rerun-") as temporary:
        rerun = args.against
        if rerun is None:
            places = [f"results_dir={args.results_dir or temporary}", f"data_dir={args.data_dir}"]
            if args.data_path:
                places.append(f"data.path={args.data_path}")
            rerun = train_until(loaded.configs[name], args.step, places)
        report = compare(args.run, rerun, args.step, ANSWERS.get(args.same_card))
    out = args.out or args.run.absolute().parent.parent / "reruns" / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=2) + "\n"
    write_whole(out, text.encode())
    print(f"{text}written to {out}")
    return 0
