"""Guards: whatever ends a run, its directory stays one history that reads and resumes."""

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from powerstep_repro.config import run_dir
from powerstep_repro.errors import UserError
from powerstep_repro.runs import Recorder, blown_up_at, is_locked, record


@pytest.fixture
def made(config):
    return config()


@pytest.fixture
def folder(made):
    return Path(run_dir(made))


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def lines(folder):
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_a_row_is_on_disk_when_log_returns_and_keeps_what_is_not_finite(made, folder):
    with Recorder(folder, made) as recorder:
        recorder.log({"step": 1, "train_loss": math.nan, "grad_norm": math.inf})
        assert lines(folder) == ['{"step": 1, "train_loss": NaN, "grad_norm": Infinity}']
        recorder.log({"step": 2, "train_loss": 1.0, "grad_norm": -math.inf})
        assert len(lines(folder)) == 2


def test_the_summary_says_running_where_and_since_when(made, folder):
    with Recorder(folder, made) as recorder:
        first = summary(folder)
        assert (first["status"], first["pid"], first["steps"]) == ("running", os.getpid(), 0)
        assert first["host"]
        assert first["started"]
        assert yaml.safe_load((folder / "config.yaml").read_text()) == made
        recorder.finish("finished", steps=3, final_val_loss=math.nan, nested={"x": [math.inf]})
    last = summary(folder)
    assert (last["status"], last["steps"]) == ("finished", 3)
    assert last["final_val_loss"] is None
    assert last["nested"] == {"x": [None]}


def row(step):
    return json.dumps({"step": step, "train_loss": 1 / step})


@pytest.mark.parametrize("step", [0, 1, 5, 8])
@pytest.mark.parametrize("cut", [0, 1, 20])
def test_resume_keeps_rows_up_to_the_step_of_a_log_that_went_on(made, folder, step, cut):
    """Killed after step 9, perhaps within a line: the checkpoint's step is the last that counts."""
    with Recorder(folder, made) as recorder:
        content = "".join(row(at) + "\n" for at in range(1, 10))
        (folder / "metrics.jsonl").write_text(content[: len(content) - cut])
        recorder.resume(step)
        assert lines(folder) == [row(at) for at in range(1, step + 1)]
        recorder.log({"step": step + 1})
        assert lines(folder)[step:] == [json.dumps({"step": step + 1})]


@pytest.mark.parametrize(
    ("steps", "between", "step", "reason"),
    [
        (None, 1, 5, "ends at step 0"),  # the file is gone
        ([], 1, 5, "ends at step 0"),
        ([1, 2, 3], 1, 5, "ends at step 3"),
        ([1], 10, 20, "ends at step 1"),
        ([1, 10], 10, 20, "ends at step 10"),
        ([1, "garbage", 3], 1, 3, "has a line that is no row"),
    ],
)
def test_a_log_that_ends_before_the_checkpoint_is_refused(
    config, made, folder, steps, between, step, reason
):
    """A hole in the log can never be filled: nothing is changed until somebody decides."""
    with Recorder(folder, made) as recorder:
        recorder.log({"step": 1, "train_loss": 2.0})
        recorder.finish("finished")
    path = folder / "metrics.jsonl"
    path.unlink()
    if steps is not None:
        path.write_text("".join(f"{at if at == 'garbage' else row(at)}\n" for at in steps))
    before = steps is not None and path.read_text()
    with (
        pytest.raises(UserError, match=f"metrics.jsonl {reason}.*: restore the file"),
        Recorder(folder, config(f"log_interval={between}")) as recorder,
    ):
        recorder.resume(step)
    assert before == (steps is not None and path.read_text())
    assert (folder / "metrics.parquet").exists(), "it may be the log's only copy"


@pytest.mark.parametrize(
    ("steps", "before", "now", "step"),
    [
        ([1, 10], 10, 10, 19),  # a checkpoint between two rows
        ([1], 10, 10, 9),
        ([1], 10, 1, 9),  # rows were to be further apart when it was written
        ([1, 2, 3, 10], 1, 10, 19),
    ],
)
def test_rows_that_were_never_due_are_not_missed(config, folder, steps, before, now, step):
    with Recorder(folder, config(f"log_interval={before}")) as recorder:
        recorder.finish("interrupted")
    (folder / "metrics.jsonl").write_text("".join(row(at) + "\n" for at in steps))
    with Recorder(folder, config(f"log_interval={now}")) as recorder:
        recorder.resume(step)
        assert lines(folder) == [row(at) for at in steps]


def test_wall_clock_time_adds_up_over_attempts(made, folder, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])
    with Recorder(folder, made) as recorder:
        now[0] += 50
        recorder.finish("interrupted")
    now[0] += 1000  # nobody trains
    with Recorder(folder, made) as recorder:
        assert recorder.previous["status"] == "interrupted"
        now[0] += 7
        recorder.finish("finished")
    assert summary(folder)["wall_s"] == 57
    assert summary(folder)["starts"] == 2


def test_a_killed_run_has_a_recent_step_count_and_time(made, folder, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])
    with Recorder(folder, made) as recorder:
        for step in range(1, 61):
            now[0] += 1
            recorder.log({"step": step})
        assert summary(folder)["steps"] > 45
        assert summary(folder)["wall_s"] > 45
        recorder.finish("interrupted")


def test_an_error_marks_the_run_failed_and_keeps_the_traceback(made, folder):
    def fail():
        with Recorder(folder, made):
            raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        fail()
    assert summary(folder)["status"] == "failed"
    assert summary(folder)["error"] == "RuntimeError: the disk is on fire"
    assert "in fail" in (folder / "error.txt").read_text()
    assert not is_locked(folder)
    with Recorder(folder, made) as recorder:  # tried again: the old error no longer holds
        assert not (folder / "error.txt").exists()
        recorder.finish("finished")
    assert "error" not in summary(folder)


def test_a_keyboard_interrupt_is_no_failure(made, folder):
    with pytest.raises(KeyboardInterrupt), Recorder(folder, made):
        raise KeyboardInterrupt
    assert summary(folder)["status"] == "interrupted"


def test_a_second_process_gets_a_sentence_that_names_the_first(made, folder, monkeypatch):
    monkeypatch.setattr(record, "_LOCK_PATIENCE_S", 0.1)
    with Recorder(folder, made) as recorder:
        assert is_locked(folder)
        with pytest.raises(UserError, match=f"being written by process {os.getpid()} on "):
            Recorder(folder, made).__enter__()
        recorder.log({"step": 1})
        recorder.finish("finished")
    assert not is_locked(folder)


def test_a_killed_process_leaves_no_lock_behind(made, folder):
    folder.mkdir(parents=True)
    code = (
        "import sys, time; from powerstep_repro.runs import Recorder\n"
        "r = Recorder(sys.argv[1], __import__('json').loads(sys.argv[2])); r.__enter__()\n"
        "print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), json.dumps(made)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "held\n"
        assert is_locked(folder)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not is_locked(folder)
    assert summary(folder)["status"] == "running"
    with Recorder(folder, made) as recorder:
        recorder.finish("finished")


def test_only_a_lock_that_another_holds_is_one(made, folder, monkeypatch, caplog):
    """File systems of clusters may have none, or refuse; that is said once, and the run goes on."""
    with Recorder(folder, made) as recorder:
        recorder.finish("interrupted")
    for number in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):

        def refuse(*_, number=number):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(record.fcntl, "flock", refuse)
        record._say_unlocked.cache_clear()
        caplog.clear()
        assert not is_locked(folder)
        with Recorder(folder, made) as recorder:
            recorder.log({"step": 1, "train_loss": 2.0})
            recorder.finish("finished")
        assert not is_locked(folder)
        (sentence,) = caplog.messages
        assert f"has no locks ([Errno {number}] {os.strerror(number)})" in sentence


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_run_whose_folder_is_deleted_under_it_does_not_end_well(made, folder, comes_back):
    """Also where something, such as the next checkpoint, has made the folder again."""

    def train():
        with Recorder(folder, made) as recorder:
            recorder.log({"step": 1, "train_loss": 2.0})
            shutil.rmtree(folder)
            if comes_back:
                (folder / "checkpoints").mkdir(parents=True)
            recorder.log({"step": 2, "train_loss": 2.0})
            recorder.finish("finished", steps=2, final_val_loss=2.0)

    with pytest.raises(OSError, match=r"metrics\.jsonl was removed or replaced while the run"):
        train()
    assert not list(folder.glob("*.*"))


def test_another_runs_directory_is_refused_with_the_keys_that_differ(made, folder, config):
    with Recorder(folder, made) as recorder:
        recorder.finish("interrupted")
    other = config("seed=2", "lr=5e-4")
    with pytest.raises(UserError, match="differs in lr, seed: move it away"):
        Recorder(folder, other).__enter__()
    assert not is_locked(folder)
    with Recorder(folder, {**made, "results_dir": "moved"}) as recorder:  # the same run elsewhere
        recorder.finish("interrupted")


def test_parquet_stands_beside_the_jsonl_of_ended_runs_only(made, folder):
    for status, there in (("interrupted", False), ("diverged", True), ("interrupted", False)):
        with Recorder(folder, made) as recorder:
            recorder.resume(0)
            assert not (folder / "metrics.parquet").exists()
            recorder.log({"step": 1, "train_loss": 2.0})
            recorder.finish(status)
        assert (folder / "metrics.parquet").exists() is there
    assert (folder / "metrics.jsonl").exists()


def test_no_temporary_file_stays(made, folder):
    with Recorder(folder, made) as recorder:
        recorder.resume(0)
        recorder.log({"step": 1})
        recorder.windows(1, [1.0, math.nan])
        recorder.finish("finished")
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "config.yaml",
        "metrics.jsonl",
        "metrics.parquet",
        "summary.json",
        "windows.json",
    }


def test_what_a_killed_attempt_left_half_written_is_removed(made, folder):
    folder.mkdir(parents=True)
    (folder / "summary.json.123.tmp").write_text('{"status": "fin')
    with Recorder(folder, made) as recorder:
        assert not list(folder.glob("*.tmp"))
        recorder.finish("interrupted")


def test_a_blow_up_is_a_finite_loss_a_nat_above_a_uniform_guess_after_the_warm_up():
    limit = math.log(257) + 1
    losses = [limit + 5, 4.0, limit - 0.01, math.nan, math.inf, limit + 0.01, 3.0]
    log = pd.DataFrame({"step": range(1, 8), "train_loss": losses})
    assert blown_up_at(log, 257, warmup_steps=1) == 6
    assert blown_up_at(log[:5], 257, warmup_steps=1) is None
    validation = pd.DataFrame({"step": [9], "train_loss": [3.0], "val_loss": [30.0]})
    assert blown_up_at(validation, 257, warmup_steps=0) == 9


def test_the_summary_names_a_blow_up(made, folder):
    with Recorder(folder, made) as recorder:
        recorder.log({"step": made["warmup_steps"] + 1, "train_loss": 30.7})
        recorder.finish("finished")
    assert summary(folder)["blown_up_at"] == made["warmup_steps"] + 1


def test_a_full_disk_frees_the_lock_and_keeps_the_error_that_it_caused(made, folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    def fail():
        with Recorder(folder, made) as recorder:
            monkeypatch.setattr(record, "write_whole", full)
            recorder.windows(1, [1.0])

    with pytest.raises(OSError, match="No space left"):
        fail()
    assert not is_locked(folder)
    assert summary(folder)["status"] == "running"  # as a killed run's: it resumes
