"""The scripts of ``benchmarks/`` as modules, and run directories without training."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from powerstep_repro.config import ROOT, compose, run_name, with_data
from powerstep_repro.runs.files import write_parquet

HASH = "0123456789abcdef"


def _script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def rerun():
    return _script("rerun")


@pytest.fixture(scope="session")
def import_runs():
    return _script("import_runs")


@pytest.fixture(scope="session")
def same_numbers():
    return _script("same_numbers")


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
