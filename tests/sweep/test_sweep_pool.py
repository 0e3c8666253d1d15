"""Guards the local executor: who trains what, where, and what becomes of failures and signals."""

import errno
import fcntl
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sweep_fakes
from rich.console import Console
from sweep_fakes import entry, events, sweep

from powerstep_repro.sweep import local

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's parent-death signal")


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(local, "POLL_SECONDS", 0.02)


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def start_sweep(folder, workers, runs, *overrides, before=None):
    """A sweep in a process of its own, to be signalled."""
    arguments = [sys.executable, sweep_fakes.__file__, folder, workers, runs, *overrides]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen(
        [str(argument) for argument in arguments],
        env=environment,
        preexec_fn=before,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_each_gpu_trains_one_run_at_a_time(tmp_path):
    entries = [entry(tmp_path, f"run{i}", "steps=3") for i in range(6)]
    outcome, _ = sweep(entries, gpus=("2", "GPU-abc"))
    assert len(outcome.done) == 6
    assert outcome.exit_code == 0
    used = {"2": 0, "GPU-abc": 0}
    gpu_of = {}
    for row in events(tmp_path):
        if row["event"] == "start":
            gpu = gpu_of[row["run"]] = row["CUDA_VISIBLE_DEVICES"]
            used[gpu] += 1
            assert used[gpu] == 1, "two runs on one GPU"
        else:
            used[gpu_of[row["run"]]] -= 1
    assert set(gpu_of.values()) == {"2", "GPU-abc"}


def test_a_failure_stops_no_other_run_and_is_listed_with_its_words(tmp_path):
    entries = [entry(tmp_path, "bad", "mode=fail"), *(entry(tmp_path, f"run{i}") for i in range(3))]
    outcome, out = sweep(entries, workers=1)
    assert [e.run_dir.name for e in outcome.done] == ["run0", "run1", "run2"]
    [(failed, why)] = outcome.failed
    assert failed.run_dir.name == "bad"
    assert why == "exit code 1: error: made to fail"
    assert outcome.exit_code == 1
    assert "FAILED: bad" in out.getvalue()
    assert "error: made to fail" in local.log_path(failed).read_text()


def test_done_runs_are_skipped_diverged_ones_too_and_failed_ones_tried_again(tmp_path):
    def entries(mode):
        return [
            entry(tmp_path, "fine"),
            entry(tmp_path, "wild", "mode=diverge"),
            entry(tmp_path, "bad", f"mode={mode}"),
        ]

    first, out = sweep(entries("fail"))
    assert first.exit_code == 1
    assert "diverged at step 1" in out.getvalue()
    second, _ = sweep(entries("ok"))
    assert second.exit_code == 0
    assert [row["run"] for row in events(tmp_path, "start")].count("bad") == 2
    third, _ = sweep(entries("ok"))
    assert third.exit_code == 0
    assert len(events(tmp_path, "start")) == 4


def test_a_run_killed_from_outside_is_resumed_but_not_for_ever(tmp_path):
    run = entry(tmp_path, "run", "steps=10000")
    log = run.run_dir / "metrics.jsonl"

    def logged():
        return log.read_bytes().count(b"\n")

    def kill_each_start():
        for count in range(3):
            wait_for(lambda count=count: len(events(tmp_path, "start")) > count)
            row = events(tmp_path, "start")[count]
            wait_for(lambda row=row: log.exists() and logged() > row["step"] + 3)
            os.kill(row["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill_each_start, daemon=True)
    killer.start()
    outcome, out = sweep([run], workers=1, retries=2)
    killer.join(5)
    assert outcome.failed[0][1] == "killed by SIGKILL"
    steps = [row["step"] for row in events(tmp_path, "start")]
    assert len(steps) == 3
    assert steps == sorted(set(steps)), "each attempt goes on where the one before was"
    assert out.getvalue().count("it goes on where it was") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_sweep_lets_its_runs_save_and_goes_on_later(tmp_path, number):
    process = start_sweep(tmp_path, 2, 4, "steps=20", "pause=0.1", "save=1000")

    def third_is_under_way():
        # Its first row, not its start alone: a run that is cut before it has nothing to save.
        starts = events(tmp_path, "start")
        ended = events(tmp_path, "end")
        return ended and starts[2:] and (tmp_path / starts[2]["run"] / "metrics.jsonl").exists()

    wait_for(third_is_under_way)
    process.send_signal(number)
    out, _ = process.communicate(timeout=10)
    # A dropped connection (SIGHUP) stops the runs as SIGTERM does.
    told = signal.SIGTERM if number == signal.SIGHUP else number
    assert process.returncode == 128 + told, out
    assert {row["code"] for row in events(tmp_path, "end")} == {0, 128 + told}
    before = len(events(tmp_path, "start"))

    outcome, _ = sweep([entry(tmp_path, f"run{i}", "steps=20") for i in range(4)])
    assert outcome.exit_code == 0
    later = events(tmp_path, "start")[before:]
    finished = [row["run"] for row in events(tmp_path, "end")[:before] if row["code"] == 0]
    assert finished
    assert not {row["run"] for row in later} & set(finished), "a finished run was trained again"
    assert later[0]["step"] > 0, "a cut run comes first and resumes"


def test_a_third_signal_kills(tmp_path):
    process = start_sweep(tmp_path, 1, 1, "steps=1000", "pause=0.05", "mode=deaf")
    wait_for(lambda: events(tmp_path, "start"))
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    process.communicate(timeout=10)
    assert process.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(events(tmp_path, "start")[0]["pid"], 0)


@linux
def test_runs_of_a_killed_sweep_save_and_end(tmp_path):
    process = start_sweep(tmp_path, 2, 2, "steps=1000", "pause=0.02", "save=10000")
    wait_for(lambda: len(events(tmp_path, "start")) == 2)
    process.kill()
    process.communicate()
    wait_for(lambda: len(events(tmp_path, "end")) == 2)
    assert {row["code"] for row in events(tmp_path, "end")} == {128 + signal.SIGTERM}
    assert all((tmp_path / f"run{i}" / "saved").exists() for i in range(2))


def test_two_sweeps_at_once_train_each_run_once(tmp_path):
    sweeps = [start_sweep(tmp_path, 2, 6, "steps=5", "pause=0.05") for _ in range(2)]
    outs = [process.communicate(timeout=20)[0] for process in sweeps]
    assert [process.returncode for process in sweeps] == [0, 0], outs
    assert sorted(row["run"] for row in events(tmp_path, "start")) == [f"run{i}" for i in range(6)]
    assert all("6 done 0 failed 0 left" in out for out in outs)


def test_a_run_that_another_process_holds_is_waited_for(tmp_path):
    (tmp_path / "held").mkdir()
    lock = open(tmp_path / "held" / ".lock", "w")  # noqa: SIM115 (closed by the thread)
    fcntl.flock(lock, fcntl.LOCK_EX)
    out = io.StringIO()

    def let_go():
        wait_for(lambda: "waits: another process trains held" in out.getvalue())
        lock.close()

    threading.Thread(target=let_go, daemon=True).start()
    outcome, _ = sweep([entry(tmp_path, "held"), entry(tmp_path, "free")], workers=1, out=out)
    assert outcome.exit_code == 0
    assert [row["run"] for row in events(tmp_path, "start")] == ["free", "held"]


def test_the_log_keeps_every_attempt(tmp_path):
    for _ in range(2):
        sweep([entry(tmp_path, "bad", "mode=fail")])
    log = local.log_path(entry(tmp_path, "bad")).read_text()
    assert log.count("--- ") == 2
    assert log.count("made to fail") == 2


def test_a_disk_that_takes_nothing_ends_in_the_closing_list(tmp_path, monkeypatch):
    """A full or read-only disk: runs that cannot start are failures, and the rest is trained."""
    (tmp_path / "bad").write_text("a file, where the run's folder cannot be made")
    outcome, out = sweep([entry(tmp_path, "bad"), entry(tmp_path, "fine")], workers=1)
    local.closing(outcome, console := Console(record=True, width=20, file=io.StringIO()))
    assert [e.run_dir.name for e in outcome.done] == ["fine"]
    assert outcome.exit_code == 1
    listed = console.export_text()
    assert "1 done, 1 failed" in listed
    assert "failed: bad: [Errno 17] File exists" in listed

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local, "start", full)
    outcome, out = sweep([entry(tmp_path, "one"), entry(tmp_path, "two")])
    assert [why for _, why in outcome.failed] == ["[Errno 28] No space left on device"] * 2
    assert out.getvalue().count("FAILED") == 2


def test_nohup_keeps_a_sweep_going(tmp_path):
    process = start_sweep(tmp_path, 1, 1, "steps=20", "pause=0.05", before=ignore_hangup)
    wait_for(lambda: events(tmp_path, "start"))
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 0


def ignore_hangup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_several_processes_go_through_torchrun_with_a_rendezvous_of_their_own():
    command = local.train_command(entry("x", "run", "lr=1e-3"), 4)
    assert command[1:] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"),
        *("-m", "powerstep_repro.train", "lr=1e-3"),
    ]
    assert local.train_command(entry("x", "run"), 1)[1:] == ["-m", "powerstep_repro.train"]
