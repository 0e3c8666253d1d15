import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from powerstep_repro.config import compose, run_dir, run_name, with_data
from powerstep_repro.runs import Recorder
from powerstep_repro.runs.files import write_parquet

HASH = "0123456789abcdef"


def row(step, **fields):
    return {"step": step, "tokens": 1024 * step, "train_loss": 5.0 - 0.01 * step, **fields}


@pytest.fixture
def config(tmp_path):
    """Make a run's config, as the train command would record it."""

    def make(*overrides, data_hash="d" * 16):
        overrides = [f"results_dir={tmp_path}", *overrides]
        return with_data(compose(overrides), data_hash, "builtin")

    return make


@pytest.fixture
def record(config):
    """Leave a whole run directory behind; returns its name."""

    def make(*overrides, rows=None, status="finished", data_hash="d" * 16, **summary):
        made = config(*overrides, data_hash=data_hash)
        if rows is None:  # no two seeds have the same losses
            rows = [row(step, train_loss=5.0 - 0.01 * step - made["seed"]) for step in range(1, 6)]
        with Recorder(run_dir(made), made) as recorder:
            recorder.resume(0)
            for each in rows:
                recorder.log(each)
            recorder.windows(len(rows), [3.0, math.nan, 2.5])
            final = {"final_val_loss": 2.5} if status == "finished" else {}
            recorder.finish(status, steps=len(rows), **final | summary)
            return recorder.run_dir.name

    return make


@pytest.fixture
def make_run(tmp_path):
    """Write one run directory; returns its path."""

    def make(
        where: str = "elsewhere",
        *overrides: str,
        losses=None,
        status: str = "finished",
        data_hash: str = HASH,
        parquet: bool = True,
        **facts,
    ) -> Path:
        config = compose(["profile=tiny", "data=builtin", "steps=20", *overrides])
        config = with_data(config, data_hash, "builtin")
        folder = tmp_path / where / config["profile"] / "runs" / run_name(config)
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "step-00000020.pt").write_bytes(b"large")
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        losses = np.linspace(5, 4, 20) if losses is None else losses
        rows = [
            {"step": step, "tokens": step * 64, "train_loss": float(loss)}
            for step, loss in enumerate(losses, start=1)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if parquet:
            write_parquet(folder)
        if status == "finished":
            (folder / "windows.json").write_text(json.dumps({"step": 20, "losses": [4.0, 5.0]}))
        summary = {"status": status, "steps": len(rows), "device": "card", "git_revision": "abc"}
        if status == "finished":
            summary["final_val_loss"] = 4.5
        (folder / "summary.json").write_text(json.dumps(summary | facts))
        return folder

    return make
