"""Guards: live, killed and ended runs load to tables that lose and invent nothing; a run whose
files do not tell one story is named and left out.
"""

import json
import logging
import math
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import yaml

from powerstep_repro.config import run_name
from powerstep_repro.config.identity import ADDED
from powerstep_repro.runs import load


def run_path(root, name):
    return root / "tiny" / "runs" / name


def change(path, /, **values):
    """Change values of a JSON or YAML file."""
    path.write_text(json.dumps(yaml.safe_load(path.read_text()) | values))


def test_ended_runs_make_one_table(record, tmp_path):
    adamw = record("optimizer=adamw", final_val_loss=2.5, device="a card")
    power = record("optimizer=powerstep", "lr=5e-4", "seed=2", status="diverged", diverged_at=5)
    runs = load(tmp_path).runs
    assert set(runs.index) == {adamw, power}
    assert runs.index.name == "run"
    assert runs.loc[adamw, "optimizer.betas"] == [0.9, 0.95]
    assert math.isnan(runs.loc[adamw, "optimizer.beta"])  # AdamW has no such hyperparameter
    assert runs.loc[power, "optimizer.beta"] == 0.1
    assert (runs.loc[power, "lr"], runs.loc[power, "seed"]) == (5e-4, 2)
    assert (runs.loc[adamw, "steps"], runs.loc[adamw, "steps_done"]) == (200, 5)
    assert runs.loc[adamw, "device"] == "a card"  # the summary's, not the config's "auto"
    assert pd.isna(runs.loc[power, "device"])
    assert runs["final_val_loss"].dtype == "float64"
    assert math.isnan(runs.loc[power, "final_val_loss"])
    assert load(tmp_path).configs[power]["optimizer"]["gamma"] == 0.9


def test_any_folder_above_will_do_and_an_empty_one_is_empty(record, tmp_path):
    name = record()
    for root in (tmp_path, tmp_path / "tiny", tmp_path / "tiny" / "runs", run_path(tmp_path, name)):
        assert list(load(root).runs.index) == [name]
    for root in (tmp_path / "h100", tmp_path / "nowhere"):
        empty = load(root)
        assert empty.runs.empty
        assert {"status", "lr", "final_val_loss", "model.name"} <= set(empty.runs.columns)


def test_values_that_are_not_finite_stay(record, tmp_path):
    rows = [
        {"step": 1, "tokens": 10, "train_loss": 4.0, "val_loss": math.inf},
        {"step": 2, "tokens": 20, "train_loss": math.nan},
    ]
    for status in ("diverged", "interrupted"):  # from Parquet, and from the jsonl
        name = record(f"seed={len(status)}", rows=rows, status=status, diverged_at=2)
        history = load(tmp_path).history(name)
        assert history["step"].tolist() == [1, 2]
        assert history["step"].dtype == history["tokens"].dtype == "int64"
        assert history["val_loss"][0] == math.inf
        assert math.isnan(history["train_loss"][1])


def test_parquet_and_jsonl_tell_the_same_and_either_is_enough(record, tmp_path):
    rows = [{"step": s, "tokens": s, "lr": 1e-3 / s} for s in (1, 2, 3)]
    rows[1]["val_loss"] = 3.25
    name = record(rows=rows)
    from_parquet = load(tmp_path).history(name)
    log = (run_path(tmp_path, name) / "metrics.jsonl").rename(tmp_path / "log")
    pd.testing.assert_frame_equal(load(tmp_path).history(name), from_parquet)
    log.rename(run_path(tmp_path, name) / "metrics.jsonl")
    (run_path(tmp_path, name) / "metrics.parquet").unlink()
    pd.testing.assert_frame_equal(load(tmp_path).history(name), from_parquet)


def test_a_live_log_is_read_up_to_its_last_whole_row(record, tmp_path):
    name = record(status="interrupted")
    with open(run_path(tmp_path, name) / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "train_loss": 60.0}\n{"step": 7')
    loaded = load(tmp_path)
    history = loaded.history(name, ["step", "train_loss", "absent"])
    assert history["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert list(history.columns) == ["step", "train_loss", "absent"]
    assert history["absent"].isna().all()
    assert not loaded.problems  # a cut last line is how a live log looks


@pytest.mark.parametrize("left", [None, "", '{"step": 1, "tok'])
def test_a_run_that_has_just_begun_has_no_row_yet(record, tmp_path, left):
    name = record(status="interrupted")
    log = run_path(tmp_path, name) / "metrics.jsonl"
    log.unlink() if left is None else log.write_text(left)
    assert load(tmp_path).history(name, ["step", "train_loss"]).empty


def shorten(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    (run / "metrics.parquet").unlink()


def garbage(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines[:2], '{"st\n', *lines[2:]]))
    (run / "metrics.parquet").unlink(missing_ok=True)


DAMAGES = {
    "no config": (lambda run: (run / "config.yaml").unlink(), "no config.yaml"),
    "no YAML": (lambda run: (run / "config.yaml").write_text("a: ["), "is not valid YAML"),
    "no run": (lambda run: (run / "config.yaml").write_text("- 1"), "lacks profile, model"),
    "no name": (lambda run: change(run / "config.yaml", data=3), "has no data.name"),
    "a word": (lambda run: change(run / "config.yaml", lr="fast"), "lr = 'fast', which is no num"),
    "no summary": (lambda run: (run / "summary.json").unlink(), "summary.json is missing or"),
    "half a summary": (lambda run: (run / "summary.json").write_text('{"st'), "missing or damaged"),
    "a short log": (shorten, "its log ends at step 4, its summary tells of 5"),
    "no log": (lambda run: [p.unlink() for p in run.glob("metrics.*")], "its log ends at step 0"),
    "a cut log": (lambda run: (run / "metrics.parquet").write_bytes(b"PAR1"), "cannot be read"),
    "garbage": (garbage, "metrics.jsonl has a line that is no row"),
    "no loss": (lambda run: change(run / "summary.json", final_val_loss=None), "no final valida"),
    "another loss": (
        lambda run: change(run / "summary.json", final_val_loss=2.9),
        "its log ends with a validation loss of 2.5000, its summary tells of 2.9000",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_ended_run_that_fails_the_check_is_named_and_left_out(record, tmp_path, caplog, damage):
    rows = [{"step": s, "tokens": s, "train_loss": 3.0, "val_loss": 2.5} for s in range(1, 6)]
    good, bad = record(), record("seed=2", rows=rows, final_val_loss=2.50001)  # a mirror rounds
    assert not load(tmp_path).problems
    do, reason = DAMAGES[damage]
    do(run_path(tmp_path, bad))
    with caplog.at_level(logging.WARNING):
        loaded = load(tmp_path)
    assert list(loaded.runs.index) == list(loaded.configs) == [good]
    assert loaded.left_out == [run_path(tmp_path, bad)]
    (sentence,) = caplog.messages
    assert sentence == loaded.problems[0]
    assert sentence.startswith(f"{run_path(tmp_path, bad)} is left out: ")
    assert reason in sentence


def test_garbage_in_a_live_log_is_named_too(record, tmp_path):
    name = record(status="interrupted")
    garbage(run_path(tmp_path, name))
    loaded = load(tmp_path)
    assert loaded.runs.empty
    assert "has a line that is no row" in loaded.problems[0]


def test_a_run_is_who_its_config_says(record, tmp_path):
    """A renamed folder alone is the same run; what its config says of other runs is theirs."""
    name = record()
    run_path(tmp_path, name).rename(tmp_path / "tiny/runs/old")
    loaded = load(tmp_path)
    assert list(loaded.runs.index) == [name]
    assert loaded.runs.at[name, "path"] == str(tmp_path / "tiny/runs/old")
    assert len(loaded.history(name)) == 5


@pytest.mark.parametrize("place", ["tiny/runs/old", "elsewhere"])
def test_of_two_folders_of_one_run_neither_wins(record, tmp_path, place):
    """The old one was moved aside or copied, the run trained again, to another end."""
    other, name = record("seed=2"), record(final_val_loss=2.5)
    old = tmp_path / place / "copy"
    shutil.copytree(run_path(tmp_path, name), old)
    change(old / "summary.json", final_val_loss=2.0)
    loaded = load(tmp_path)
    assert list(loaded.runs.index) == list(loaded.configs) == [other]
    (sentence,) = loaded.problems
    for path in (old, run_path(tmp_path, name)):
        assert str(path) in sentence
        assert path in loaded.left_out
    # A damaged one is none that could win.
    (old / "summary.json").unlink()
    assert set(load(tmp_path).runs.index) == {other, name}


def test_a_summary_changes_no_setting(record, tmp_path):
    name = record(final_val_loss=2.5)
    change(run_path(tmp_path, name) / "summary.json", seed=9, lr=9, path=3)
    row = load(tmp_path).runs.loc[name]
    assert (row["seed"], row["lr"], row["final_val_loss"]) == (1337, 7e-4, 2.5)
    assert row["path"] == str(run_path(tmp_path, name))


def test_hidden_folders_hold_no_runs(record, tmp_path):
    """A pull that was killed leaves one, with a whole run in it."""
    name = record()
    shutil.copytree(run_path(tmp_path, name), tmp_path / "tiny" / ".pull-abc" / "new")
    loaded = load(tmp_path)
    assert list(loaded.runs.index) == [name]
    assert not loaded.problems


def test_windows_are_an_array_or_a_problem(record, tmp_path):
    name = record()
    loaded = load(tmp_path)
    np.testing.assert_array_equal(loaded.windows(name), [3.0, math.nan, 2.5])
    assert not loaded.problems
    for damaged in ("{", '{"losses": []}'):
        (run_path(tmp_path, name) / "windows.json").write_text(damaged)
        assert loaded.windows(name) is None
        (problem,) = loaded.problems
        assert "windows.json is missing or damaged" in problem


def test_histories_of_many_live_runs_are_read_as_they_are_asked_for(record, config, tmp_path):
    source = run_path(tmp_path, record(status="interrupted"))
    for seed in range(1, 101):
        made = config(f"seed={seed}")
        path = tmp_path / "many" / run_name(made)
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(yaml.safe_dump(made))
        shutil.copy(source / "summary.json", path)
        (path / "metrics.jsonl").write_text(f'{{"step": 1, "train_loss": {seed}.5}}\n')
    loaded = load(tmp_path / "many")
    assert len(loaded.runs) == 100
    name = loaded.runs.index[loaded.runs["seed"] == 42][0]
    (tmp_path / "many" / name / "metrics.jsonl").write_text('{"step": 1, "train_loss": 7.0}\n')
    assert loaded.history(name)["train_loss"].tolist() == [7.0]


def test_neither_torch_nor_wandb_is_imported_to_load():
    code = (
        "import sys, powerstep_repro.config, powerstep_repro.runs\n"
        "assert not {'torch', 'wandb', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("key", ["repeat", "weight_decay_on"])
def test_a_finished_run_from_before_a_key_counts_or_is_named(record, tmp_path, key):
    """It has the value from before the key came; where nobody told that one, it is named."""
    name = record()
    path = run_path(tmp_path, name) / "config.yaml"
    before = yaml.safe_load(path.read_text())
    del before[key]
    path.write_text(yaml.safe_dump(before))
    loaded = load(tmp_path)
    if key in ADDED:
        assert list(loaded.runs.index) == [name]
        assert not loaded.problems
    else:
        assert len(loaded.runs) == 1
        (problem,) = loaded.problems
        assert problem.endswith(f"its config lacks {key}")
        assert str(path.parent) in problem
