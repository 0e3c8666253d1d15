"""Guards the way through submitit, on its local executor and on a stand-in for Slurm's commands:
pre-emption saves, queues again and resumes; failures are found out."""

import io
import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest
import submitit
import sweep_fakes
from rich.console import Console
from sweep_fakes import command, entry, events

from powerstep_repro.errors import UserError
from powerstep_repro.sweep import slurm
from powerstep_repro.sweep.overview import Overview

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Slurm's commands on PATH; returns the folder of the fake's state."""
    state, tools = tmp_path / "slurm", tmp_path / "bin"
    state.mkdir()
    tools.mkdir()
    fake = Path(sweep_fakes.__file__).with_name("fake_slurm.py")
    for name in ("sbatch", "srun", "sacct", "scontrol"):
        tool = tools / name
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{fake}" {name} "$@"\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("FAKE_SLURM", str(state))
    return state


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.1)


def executor_of(kind, folder):
    if kind == "slurm":
        return slurm.executor(folder, gpus_per_run=0)
    out = submitit.LocalExecutor(folder, max_num_timeout=slurm.TIMEOUTS)
    out.update_parameters(timeout_min=5, stderr_to_stdout=True)
    return out


def watched(entries, jobs):
    out = io.StringIO()
    overview = Overview(len(entries), 0, Console(file=out, width=200))
    return slurm.follow(entries, jobs, overview), out.getvalue()


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the job's process through /proc")
@pytest.mark.parametrize("kind", ["slurm", "submitit-local"])
def test_a_preempted_job_saves_is_queued_again_and_resumes(kind, cluster, tmp_path, monkeypatch):
    if kind != "slurm":
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
    entries = [
        entry(tmp_path / "runs", "long", "steps=60", "pause=0.05", "save=1000"),
        entry(tmp_path / "runs", "bad", "mode=fail"),
    ]
    executor = executor_of(kind, tmp_path / "jobs")
    jobs = slurm.submit(entries, executor, command=command)

    wait_for(lambda: any(row["run"] == "long" for row in events(tmp_path / "runs", "start")))
    time.sleep(0.3)
    training = next(r["pid"] for r in events(tmp_path / "runs") if r["run"] == "long")
    job = int(Path(f"/proc/{training}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (training, job):  # Slurm signals every process of a job
        os.kill(pid, signal.SIGUSR2)

    outcome, out = watched(entries, jobs)
    assert [e.label for e in outcome.done] == ["long"], out
    starts = [row for row in events(tmp_path / "runs", "start") if row["run"] == "long"]
    ends = [row["code"] for row in events(tmp_path / "runs", "end") if row["run"] == "long"]
    assert ends == [128 + signal.SIGTERM, 0]
    assert [row["step"] > 0 for row in starts] == [False, True]
    [(failed, why)] = outcome.failed
    assert failed.label == "bad"
    assert "error: made to fail" in why
    assert outcome.exit_code == 1


def test_the_batch_script_says_what_was_asked_for(cluster, tmp_path):
    executor = slurm.executor(
        tmp_path / "jobs",
        gpus_per_run=4,
        workers=3,
        time_min=90,
        partition="gpu",
        account="lab",
        extra=["mem=64GB", "nice=100"],
    )
    script = executor._make_submission_file_text("COMMAND", "uid")
    for line in (
        "--partition=gpu",
        "--account=lab",
        "--time=90",
        "--gpus-per-node=4",
        "--cpus-per-task=16",
        "--mem=64GB",
        "--nice=100",
        "--requeue",
        "--signal=USR2@120",
    ):
        assert f"#SBATCH {line}\n" in script
    assert executor.parameters["array_parallelism"] == 3


@pytest.mark.parametrize(("minutes", "delay"), [(1, 30), (2, 60), (4, 120), (240, 120)])
def test_a_short_time_limit_leaves_half_of_it_to_train(cluster, tmp_path, minutes, delay):
    """A signal 120 s before the end of a minute would come before the start."""
    script = slurm.executor(tmp_path, time_min=minutes)._make_submission_file_text("COMMAND", "uid")
    assert f"#SBATCH --signal=USR2@{delay}\n" in script


def test_nothing_of_the_job_that_submits_reaches_the_new_one(cluster, tmp_path, monkeypatch):
    for name in ("SLURM_CPU_BIND", "SLURM_JOB_ID", "SLURM_CONF", "SBATCH_ACCOUNT", "RANK"):
        monkeypatch.setenv(name, "mine")
    [job] = slurm.submit(
        [entry(tmp_path / "runs", "run")], executor_of("slurm", tmp_path / "jobs"), command=command
    )
    given = json.loads((cluster / "environment").read_text())
    assert not {"SLURM_CPU_BIND", "SLURM_JOB_ID", "RANK"} & given.keys()
    assert (given["SLURM_CONF"], given["SBATCH_ACCOUNT"]) == ("mine", "mine")
    assert os.environ["SLURM_CPU_BIND"] == "mine"
    assert job.result() == "finished"


def test_what_is_wrong_is_said_in_a_sentence(cluster, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="'mem' is not of the form key=value"):
        slurm.executor(tmp_path, extra=["mem"])
    refusing = tmp_path / "bin" / "sbatch"
    refusing.write_text("#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    with pytest.raises(UserError, match=r"Slurm refuses the jobs: .*invalid partition"):
        slurm.submit([entry(tmp_path, "run")], slurm.executor(tmp_path), command=command)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="not on PATH"):
        slurm.executor(tmp_path)


def test_a_training_that_slurm_has_signalled_itself_is_not_signalled_twice(tmp_path):
    """A second signal would stop it without saving."""
    run = entry(tmp_path, "run", "steps=1000", "pause=0.1", "save=1000")
    job = slurm.TrainJob(run, command(run, 1))
    job._process = slurm.start(run, job.command, dict(os.environ))
    wait_for(lambda: events(tmp_path, "start"))
    sent = []
    job._process.send_signal, send = sent.append, job._process.send_signal
    job._note_termination(signal.SIGTERM, None)
    send(signal.SIGTERM)
    again = job.checkpoint()
    assert sent == []
    assert job._process.wait() == 128 + signal.SIGTERM
    assert again.function.entry.label == "run"
