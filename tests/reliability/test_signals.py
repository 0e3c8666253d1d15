"""Guards that a signal, and Slurm's pre-emption, cost neither a step nor a bit: the run saves where
it stands, ends with the signal's code, and the same command goes on from there.
"""

import os
import pty
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import submitit
from reliability_kit import SMALL, Harness, checkpoints, differences, left, summary

from powerstep_repro.config import compose
from powerstep_repro.sweep import slurm
from powerstep_repro.sweep.plan import Entry

RUN = ("optimizer=adamw", "model.dropout=0.1", "micro_batch=2", "checkpoint_interval=100")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """What the undisturbed run leaves."""
    harness = Harness(tmp_path_factory.mktemp("whole"), text)
    assert harness(*RUN) == 0, harness.said
    return left(harness.run())


def signalled_after(step: int, number: int, times: int, pipe) -> None:
    """The process gets a signal, or several half a second apart, while it logs a step."""
    from powerstep_repro.runs.record import Recorder

    log = Recorder.log

    def log_and_signal(self, row):
        log(self, row)
        if row["step"] == step:
            for _ in range(times):
                os.kill(os.getpid(), number)
                time.sleep(0.6 if times > 1 else 0)

    Recorder.log = log_and_signal


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_same_command_goes_on_to_the_last_bit(harness, whole, number, code):
    assert harness(*RUN, accident=partial(signalled_after, 5, number, 1)) == code, harness.said
    assert summary(harness.run())["status"] == "interrupted"
    # No checkpoint was due: the signal alone had the next step finished and saved.
    assert list(checkpoints(harness.run())) == [6] == [summary(harness.run())["steps"]]
    assert harness(*RUN) == 0, harness.said
    assert "resuming after step 6" in harness.said
    assert not differences(whole, left(harness.run()))


def test_without_checkpoints_a_stopped_run_starts_anew_and_a_finished_one_stays(harness, whole):
    run = (*RUN, "checkpoint_interval=0")
    assert harness(*run, accident=partial(signalled_after, 5, signal.SIGTERM, 1)) == 143
    assert not (harness.run() / "checkpoints").exists()
    assert harness(*run) == 0, harness.said
    assert "no checkpoint: starts at step 1" in harness.said
    assert not (harness.run() / "checkpoints").exists()
    assert not differences(whole | {"checkpoint": None}, left(harness.run()))
    assert harness(*run) == 0
    assert "already finished" in harness.said


def test_a_terminal_that_goes_stops_the_command_and_the_run_is_saved(harness):
    """A dropped ssh: the command's terminal is closed, and it can print no more."""
    settings = (*SMALL, *RUN, "steps=100000", "results_dir=long")
    data = ("data=text", f"data.path={harness.text}", f"data_dir={harness.text.parent}/data")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(harness.folder)
        command = [sys.executable, "-m", "powerstep_repro.train", *settings, *data]
        os.execve(sys.executable, command, environment)
    while b"/100000" not in os.read(terminal, 10_000):
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 143
    found = summary(harness.run("long"))
    assert found["status"] == "interrupted"
    assert list(checkpoints(harness.run("long")))[-1] == found["steps"]


def test_a_second_signal_stops_the_command_at_once(harness, whole):
    ended = harness(*RUN, accident=partial(signalled_after, 5, signal.SIGTERM, 2))
    assert ended == -signal.SIGTERM
    assert checkpoints(harness.run()) == {}
    assert harness(*RUN) == 0, harness.said
    assert not differences(whole, left(harness.run()))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the job's process through /proc")
def test_a_training_that_slurm_pre_empts_resumes_to_the_last_bit(harness, tmp_path, monkeypatch):
    """The train command itself, in a job of submitit's on this machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data = ("data=text", f"data.path={harness.text}", f"data_dir={harness.text.parent}/data")
    more = (*RUN, "steps=300", "eval_interval=100")
    assert harness(*more, "results_dir=whole") == 0, harness.said
    overrides = (*SMALL, *data, *more, f"results_dir={tmp_path}/results")
    run = tmp_path / "results/tiny/runs" / harness.run("whole").name
    executor = submitit.LocalExecutor(tmp_path / "jobs", max_num_timeout=3)
    executor.update_parameters(timeout_min=5, stderr_to_stdout=True)
    entry = Entry(overrides, compose(overrides), run)
    [job] = slurm.submit([entry], executor)

    log, patience = run / "metrics.jsonl", time.monotonic() + 60
    while not (log.exists() and len(log.read_bytes().splitlines()) >= 5):
        assert time.monotonic() < patience, (run / "log.txt").read_text()
        time.sleep(0.005)
    training = summary(run)["pid"]
    parent = int(Path(f"/proc/{training}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (training, parent):  # Slurm signals every process of a job
        os.kill(pid, signal.SIGUSR2)
    assert job.result() == "finished"
    assert "interrupted at step" in (run / "log.txt").read_text()
    assert summary(run)["starts"] == 2
    assert not differences(left(harness.run("whole")), left(run))
