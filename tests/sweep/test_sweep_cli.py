"""Guards the command itself, from a sweep file to trained runs: plan, work, exit codes, words."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from powerstep_repro.config import compose, expand, run_name, with_data
from powerstep_repro.errors import UserError
from powerstep_repro.sweep import cli

ROOT = Path(__file__).parents[2]
SMALL = ("steps=4", "batch=2", "context=32", "eval_windows=2", "device=cpu")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A sweep file of two runs, a little text, and the overrides that keep all of it in here."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("The quick brown fox jumps over the lazy dog. " * 200)
    sweep = tmp_path / "mine.yaml"
    sweep.write_text("runs: [{grid: {optimizer: [powerstep], optimizer.beta: [0.0, 0.1]}}]\n")
    places = (f"results_dir={tmp_path}/results", f"data_dir={tmp_path}/data")
    return [str(sweep), *SMALL, *places, "data=text", f"data.path={text}", "data.val_fraction=0.2"]


def record(config_overrides, status, folder, **changes):
    """Leave a run's record under ``folder``; ``changes`` are fields of its summary."""
    data_hash = changes.pop("data_hash", "0" * 16)
    config = with_data(compose(config_overrides), data_hash, "text")
    run = folder / config["profile"] / "runs" / run_name(config)
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "metrics.jsonl").write_text(json.dumps({"step": config["steps"], "tokens": 1}) + "\n")
    summary = {"status": status, "steps": config["steps"], "wall_s": 8.0, "device": "a card"}
    summary["final_val_loss"] = 3.0
    (run / "summary.json").write_text(json.dumps(summary | {"updated": "2026"} | changes))
    return run


def test_a_sweep_is_trained_once_and_failures_are_found_out(world, tmp_path, capsys):
    assert cli.main([*world, "--missing"]) == cli.MISSING
    # A vocabulary that is too small for the bytes of the text makes a run fail.
    code = cli.main([*world, "model.vocab_size=257,100", "optimizer.beta=0.1"])
    out = capsys.readouterr().out
    assert code == 1
    assert "1 done, 1 failed" in out
    log = Path(out.rpartition("log: ")[2].strip())
    assert "100" in log.read_text()
    # The way of Slurm, on submitit's local executor.
    assert cli.main([*world, "--executor", "submitit-local"]) == 0
    out = capsys.readouterr().out
    assert "2 runs: 1 to do, 1 done" in out, "the run that two sweeps share is trained once"
    assert "1 jobs submitted" in out
    assert cli.main([*world]) == 0
    assert "2 runs: 2 done\n" in capsys.readouterr().out

    # What is there is seen without torch, and without the data.
    (tmp_path / "data").rename(tmp_path / "gone")
    (tmp_path / "text").rename(tmp_path / "gone text")
    probe = (
        "import sys; from powerstep_repro.sweep.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    for flag in ("--missing", "--dry-run"):
        done = subprocess.run(
            [sys.executable, "-c", probe, *world, flag], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert "2 runs: 2 done" in done.stdout
    assert "the data is not here" in done.stdout
    with pytest.raises(UserError, match="text"):
        cli.main([*world])


def test_missing_counts_as_figures_do(world, tmp_path):
    results = tmp_path / "results"
    planned = expand(world[0], world[1:])
    first, second = (list(each.overrides) for each in planned)
    record(first, "finished", results)
    assert cli.main([*world, "--missing"]) == cli.MISSING
    record(second, "interrupted", results)
    assert cli.main([*world, "--missing"]) == cli.MISSING
    record(second, "finished", results, data_hash="f" * 16)
    assert cli.main([*world, "--missing"]) == cli.MISSING, "runs on two data sets never mix"
    record(second, "diverged", results, data_hash="1" * 16, updated="2030")
    record(first, "finished", results, data_hash="1" * 16, updated="2030")
    assert cli.main([*world, "--missing"]) == 0, "diverged is a result"
    assert cli.main([*world, "seed=1337,2", "--missing"]) == cli.MISSING


def test_models_with_data_sets_of_their_own_are_all_counted(tmp_path, capsys):
    sweep = tmp_path / "mine.yaml"
    sweep.write_text("runs: [{grid: {model: [gpt2_small, qwen3_0_6b], optimizer: [adamw]}}]\n")
    each = ["profile=paper", f"results_dir={tmp_path}/results"]
    for number, planned in enumerate(expand(str(sweep), each)):
        assert cli.main([str(sweep), *each, "--missing"]) == cli.MISSING
        record(planned.overrides, "finished", tmp_path / "results", data_hash=f"{number}" * 16)
    assert cli.main([str(sweep), *each, "--missing"]) == 0
    assert "2 of 2 runs are there" in capsys.readouterr().out


def test_a_plan_that_is_only_asked_for_starts_nothing(world, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("powerstep_repro.sweep.local.Pool", None)
    assert cli.main([*world, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "2 runs: 2 to do\n" in out
    assert "gpt2_small-powerstep" in out
    assert not (tmp_path / "results").exists()


def test_a_plan_that_no_terminal_shows_is_whole_and_a_path_is_one_value(world, tmp_path, capsys):
    folders = [letter * 200 + ", (old) #1 [x]" for letter in "ab"]
    sweep = tmp_path / "two.yaml"
    sweep.write_text(yaml.safe_dump({"runs": [{"grid": {"data.path": folders}}]}))
    assert cli.main([str(sweep), *world[1:-2], "data=text", "--dry-run"]) == 0
    out = capsys.readouterr().out
    for folder in folders:
        assert f"data.path={folder}" in out
    assert cli.main([str(sweep), *world[1:-2], "data=text", "data.path=a,b", "--dry-run"]) == 0
    assert "1 run: 1 to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["bета"], "unknown sweep"),
        (["smal"], "did you mean 'small'"),
        (["beta", "optimizer.bta=1"], "optimizer.beta"),
        (["beta", "--workers", "0"], "--workers is 0; it must be at least 1"),
        (["beta", "--gpus-per-run", "0"], "must be at least 1, and device=cpu"),
        (["beta", "--retries", "-1"], "--retries is -1"),
        (["beta", "--wokers", "2"], "unrecognized arguments: --wokers"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        cli.main(arguments)


@pytest.mark.parametrize(
    ("package", "arguments", "sentence"),
    [
        ("submitit", ["--executor", "slurm"], "--executor slurm needs submitit"),
        ("nothing", ["--executor", "slurm"], "needs the commands sbatch and srun"),
        ("wandb", ["logger=wandb"], "logger=wandb needs wandb"),
        ("torch", [], "training needs torch"),
    ],
)
def test_what_every_run_would_lack_is_said_before_anything(
    world, tmp_path, monkeypatch, capsys, package, arguments, sentence
):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=sentence) as refused:
        cli.main([*world, *arguments])
    if package in str(refused.value):
        assert "pip install -e '.[" in str(refused.value)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "results").exists()


def test_overrides_may_stand_before_and_after_options():
    args = cli.parse(["beta", "profile=tiny", "--workers", "2", "seed=2", "--dry-run"])
    assert args.overrides == ["profile=tiny", "seed=2"]
    assert (args.workers, args.dry_run) == (2, True)
