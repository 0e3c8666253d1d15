"""Guards: the train command end to end; what it leaves, how it ends, how it goes on."""

import math
import os
import signal
from contextlib import nullcontext

import pytest
from train_kit import rows, summary, wait_for_rows

from powerstep_repro import train
from powerstep_repro.config import compose, run_name
from powerstep_repro.runs import load
from powerstep_repro.train import _micro_batch


def test_a_run_leaves_a_whole_record_and_nothing_else_where_it_was_started(command):
    assert command("optimizer=adamw", "seed=3") == 0
    left = summary(command.run)
    assert (left["status"], left["steps"], left["diverged_at"]) == ("finished", 12, None)
    assert left["final_val_loss"] == rows(command.run)[-1]["val_loss"]
    assert left["final_train_loss"] == rows(command.run)[-1]["train_loss"]
    # 257 and 16 rows of 16 for the embeddings, 12 * 16^2 for the block, three gains of 16.
    assert left["n_params"] == (257 + 16) * 16 + 12 * 256 + 3 * 16
    assert left["optimizer_state_bytes"] == 8 * left["n_params"]
    assert left["peak_memory_bytes"] > 10**7
    assert left["wall_s"] > 0
    assert left["device"]
    assert {"python", "torch", "numpy", "hydra-core", "powerstep_repro"} <= set(left["versions"])
    assert {"git_revision", "git_dirty", "host", "pid", "blown_up_at"} <= set(left)

    loaded = load(command.folder / "results")
    (run,) = loaded.runs.index
    assert [row["step"] for row in rows(command.run)] == list(range(1, 13))
    config = loaded.configs[run]
    assert run == run_name(config)
    assert (config["data"]["name"], len(config["data"]["hash"])) == ("text", 16)
    assert len(loaded.windows(run)) == 4
    # No Hydra folder, no job log, no copy of the config.
    names = {path.name for path in command.folder.iterdir()}
    assert names == {"results", "data", "output.txt"}


def test_a_finished_run_is_not_trained_again(command):
    assert command() == 0
    before = summary(command.run)
    assert command() == 0
    assert "already finished at step 12" in command.said
    assert summary(command.run) == before
    assert command("seed=2") == 0
    assert len(command.runs) == 2


def test_a_run_goes_on_when_its_reader_has_left(command):
    """As in ``| head -1``: that nobody looks on is no reason to stop, nor to complain."""
    for status in ("trained", "already there"):
        assert command(read=False) == 0, status
        assert command.said == "", status
        assert (summary(command.run)["status"], len(rows(command.run))) == ("finished", 12)


def test_a_run_killed_outright_goes_on_to_what_an_undisturbed_one_is(command, tmp_path, text):
    settings = ("checkpoint_interval=3", "steps=40", "model.dropout=0.1")
    process = command.start(*settings)
    wait_for_rows(command, 8)
    process.kill()
    process.join()
    assert summary(command.run)["status"] == "running"
    assert command(*settings) == 0
    assert "resuming after step" in command.said
    (tmp_path / "whole").mkdir()
    whole = type(command)(tmp_path / "whole", text)
    assert whole(*settings) == 0
    assert rows(command.run) == rows(whole.run)
    assert summary(command.run)["starts"] == 2
    assert summary(command.run)["final_val_loss"] == summary(whole.run)["final_val_loss"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_interrupts_and_the_same_command_goes_on(command, number, code):
    process = command.start("steps=5000")
    wait_for_rows(command, 4)
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == code
    at = summary(command.run)["steps"]
    assert summary(command.run)["status"] == "interrupted"
    assert f"interrupted at step {at}" in command.said
    assert rows(command.run)[-1]["step"] == at


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_waits_until_the_parts_are_built(monkeypatch, tmp_path, number, error):
    """Half-way through an import it would come out as that package's own error."""
    built = []

    def build(*_):
        os.kill(os.getpid(), number)
        built.append(True)
        return {}

    monkeypatch.setattr(train, "_build", build)
    with pytest.raises(error):
        train._compute({}, None, tmp_path, nullcontext(), None)
    assert built


def test_a_divergence_is_a_result(command):
    assert command("lr=1e30", "grad_clip=0", "warmup_steps=0") == 0
    left = summary(command.run)
    assert left["status"] == "diverged"
    assert left["diverged_at"] == rows(command.run)[-1]["step"]
    assert left["final_val_loss"] is None
    assert f"diverged at step {left['diverged_at']}" in command.said
    assert command("lr=1e30", "grad_clip=0", "warmup_steps=0") == 0
    assert "already diverged" in command.said


def test_a_second_process_on_one_run_leaves_with_a_sentence(command):
    process = command.start("steps=5000")
    try:
        wait_for_rows(command, 1)
        assert command("steps=5000") == 1
        assert f"is being written by process {process.pid}" in command.said
        assert "Traceback" not in command.said
    finally:
        process.kill()
        process.join()


def test_a_failure_keeps_its_traceback_and_can_be_tried_again(command):
    command("steps=1")  # builds the data set
    blocked = command.folder / "results" / "tiny" / "runs"
    ours = next(blocked.iterdir())
    (ours / "summary.json").unlink()
    for path in (ours / "checkpoints").iterdir():
        path.unlink()
    (ours / "checkpoints").rmdir()
    (ours / "checkpoints").write_text("a file where the folder should be")
    assert command("steps=1") == 1
    assert summary(ours)["status"] == "failed"
    assert command.said.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" in (ours / "error.txt").read_text()
    (ours / "checkpoints").unlink()
    assert command("steps=1") == 0
    assert summary(ours)["status"] == "finished"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["optimizer.bta=1"], ["optimizer.bta", "optimizer.beta"]),
        (["optimizer=adamv"], ["'adamv'", "'adamw'"]),
        (["steps=0"], ["steps", "got 0"]),
        (["--lr=1e-3"], ["--lr=1e-3", "write lr=1e-3"]),
        (["--cfg", "job", "optimizer.bta=1"], ["optimizer.bta", "optimizer.beta"]),
        (["--cfg", "job", "-m"], ["--cfg", "--multirun"]),
        (["--cfg", "jib"], ["--cfg", "jib", "job"]),
        (["data.path=nowhere.txt"], ["nowhere.txt"]),
        (["data=tokens", "data.path=nowhere"], ["nowhere"]),
        (["context=50000"], ["50000", "too few"]),
        (["model.vocab_size=100"], ["257", "100"]),
        (["model.heads=3"], ["heads", "3"]),
        (["device=cuda"], ["cuda"]),
        (["results_dir=output.txt"], ["output.txt"]),
    ],
)
def test_bad_input_is_one_sentence_and_a_non_zero_code(command, overrides, words):
    assert command(*overrides) == 1
    (line,) = command.said.strip().splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    assert not command.runs  # what cannot be trained is no run


def test_help_names_groups_keys_and_examples(command):
    assert command("--help", small=False) == 0
    for word in ("optimizer: adam", "gpt2_small", "lr: ", "Exit code", "--multirun", "torchrun"):
        assert word in command.said


def test_multirun_is_a_sweep_of_its_grid_and_fails_if_a_run_did(command):
    assert command("-m", "context=50000,16") == 1
    assert "2 runs: 2 to do" in command.said
    assert "1 done, 1 failed" in command.said
    log = command.folder / command.said.rpartition("log: ")[2].strip()
    assert "too few" in log.read_text()
    # The context that the data cannot fill was refused before it was a run.
    assert len(load(command.folder / "results").runs) == 1
    names = {path.name for path in command.folder.iterdir()}
    assert names == {"results", "data", "output.txt"}


def test_multirun_checks_every_combination_before_it_starts_any(command):
    assert command("-m", "seed=1,2", "optimizer.beta=0.1,1.5") == 1
    assert "optimizer.beta must be a number in [0, 1], got 1.5" in command.said
    assert command("-m", "seed=1,2", RANK="0") == 1
    assert "--gpus-per-run" in command.said
    assert not command.runs


def test_wandb_offline_and_broken(command):
    environment = {"WANDB_MODE": "offline", "WANDB_DIR": str(command.folder)}
    assert command("logger=wandb", **environment) == 0
    assert len(list(command.folder.glob("wandb/offline-run-*"))) == 1
    blocked = command.folder / "blocked"
    blocked.write_text("")
    assert command("logger=wandb", "seed=2", WANDB_MODE="offline", WANDB_DIR=str(blocked)) == 0
    assert "WARNING" in command.said
    assert "finished at step 12" in command.said
    # Who watches is no part of a run: without W&B it is the same one.
    assert command() == 0
    assert "already finished" in command.said


def test_micro_batch_is_a_limit_and_fits_any_number_of_ranks():
    config = compose(["batch=24", "micro_batch=10"])
    assert [_micro_batch(config, world) for world in (1, 2, 3, 4, 24)] == [8, 6, 8, 6, 1]
    assert _micro_batch(compose(["batch=24"]), 2) is None


def test_a_blow_up_that_stays_finite_is_named(command):
    assert command("lr=3", "optimizer=signsgd", "warmup_steps=0") == 0
    left = summary(command.run)
    assert left["status"] == "finished"
    assert left["blown_up_at"] is not None
    assert math.isfinite(left["final_val_loss"])
    assert f"blown up at step {left['blown_up_at']}" in command.said
