"""Guards: what our mirror sends through wandb's own client, the command brings back unchanged."""

import json
import math

import pytest
import yaml
from wandb_server import row

from powerstep_repro.config import run_id, run_name
from powerstep_repro.runs import Recorder, load
from powerstep_repro.runs.wandb_mirror import WandbMirror


def attempt(run_dir, config, steps, status, checkpoint=0):
    """One attempt at a run, from a checkpoint through ``steps``."""
    with Recorder(run_dir, config, WandbMirror(config)) as recorder:
        recorder.resume(checkpoint)
        recorder.summary(device="a card", n_params=1234, versions={"python": "3.12", "torch": "2"})
        for step in range(checkpoint + 1, steps + 1):
            values = {"val_loss": 4.0 / step} if step % 2 == 0 else {}
            if step == 7:
                values = {"train_loss": math.nan, "grad_norm": math.inf, "lr": -math.inf}
            recorder.log(row(step, **values))
        recorder.windows(steps, [0.1, 3.0, math.nan])
        recorder.finish(status, steps=steps, final_val_loss=0.5, diverged_at=None)


@pytest.fixture
def trained(server, config, tmp_path):
    """A run that was interrupted at step 5, and went on from its checkpoint of step 3 to 8."""
    place = ("logger.entity=me", "logger.project=proj", "logger.mode=online")
    resolved = config("optimizer=adamw", "seed=77", *place)
    local = tmp_path / "local" / run_name(resolved)
    attempt(local, resolved, 5, "interrupted")
    attempt(local, resolved, 8, "diverged", checkpoint=3)
    return resolved, local


def test_an_interrupted_and_resumed_run_comes_back_as_it_was(trained, server, pull, folder):
    resolved, local = trained
    (run,) = server.projects["me/proj"].values()
    assert (run.name, run.state, run.lines()) == (run_id(resolved), "finished", 8)
    assert pull() == 0
    pulled = folder / local.name
    assert (pulled / "metrics.jsonl").read_bytes() == (local / "metrics.jsonl").read_bytes()
    assert (pulled / "windows.json").read_bytes() == (local / "windows.json").read_bytes()
    assert yaml.safe_load((pulled / "config.yaml").read_text()) == resolved
    here, there = (json.loads((at / "summary.json").read_text()) for at in (local, pulled))
    assert there.pop("pulled_from") == f"me/proj/{run.name}"
    # W&B drops what is null.
    assert there == {key: value for key, value in here.items() if value is not None}
    assert there["versions"] == {"python": "3.12", "torch": "2"}


def test_figures_read_a_pulled_run_like_the_local_one(trained, pull, folder):
    _, local = trained
    assert pull() == 0
    ours, theirs = load(local), load(folder)
    assert not theirs.problems
    for column in ("status", "lr", "steps", "steps_done", "final_val_loss", "optimizer.eps"):
        assert theirs.runs.at[local.name, column] == ours.runs.at[local.name, column]
    assert (folder / local.name / "metrics.parquet").is_file()
    a, b = (loaded.history(local.name) for loaded in (ours, theirs))
    assert a.equals(b[a.columns])
    assert theirs.history(local.name)["val_loss"].isna().sum() == 4
