"""Train a sweep as Slurm jobs, one job a run, through submitit.

The job trains in a process of its own, as on one machine. When Slurm announces that the job's time
is up or that it is pre-empted, the training is told to save, and the job puts itself back into the
queue; when it is its turn again, the run goes on from there.

submitit hands a job over as a pickle that it writes below the results folder and reads again in the
job; nothing from elsewhere is ever unpickled.
"""

import getpass
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import submitit

from powerstep_repro.errors import UserError
from powerstep_repro.sweep.local import describe_exit, log_path, start, train_command
from powerstep_repro.sweep.plan import Entry
from powerstep_repro.sweep.state import DONE, classify, last_words

JOB_FILE = "job.json"  # in the run's directory: which job was to train it
SAVE_SECONDS = 120  # between Slurm's announcement and the end of the job
GRACE_SECONDS = 20  # for a training that Slurm has signalled itself
TIMEOUTS = 1000  # a run may outlast the time limit this often; each time it is queued again
POLL_SECONDS = 0.2


class TrainJob:
    """One run as a job: called, it trains; ``checkpoint`` hands it back to the queue.

    Args:
        entry: the run.
        command: the command that trains it.
    """

    def __init__(self, entry: Entry, command: Sequence[str]):
        self.entry = entry
        self.command = list(command)
        self._process: subprocess.Popen | None = None
        self._terminated = False

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_process": None, "_terminated": False}

    def __call__(self) -> str:
        """Train; returns the run's final status.

        Raises:
            RuntimeError: the run has not ended as finished or diverged, so that the job counts as
                failed.
        """
        # Slurm signals every process of a job, the training too: it saves and ends by itself.
        signal.signal(signal.SIGTERM, self._note_termination)
        self._process = start(self.entry, self.command, dict(os.environ))
        while not self._ended():
            time.sleep(POLL_SECONDS)
        code = self._process.wait()
        state, summary = classify(self.entry.run_dir)
        if state != DONE:
            log = log_path(self.entry)
            raise RuntimeError(
                f"{self.entry.name}: {describe_exit(code)}: {last_words(log)} (log: {log})"
            )
        return summary["status"]

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Called by submitit in its signal handler: save, then go back to the queue."""
        deadline = time.monotonic() + (GRACE_SECONDS if self._terminated else 0)
        while not self._ended() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if not self._ended():
            # One signal only: the training takes a second one for "at once, without saving".
            os.kill(self._process.pid, signal.SIGTERM)
        while not self._ended():  # Slurm ends the wait if the training does not
            time.sleep(POLL_SECONDS)
        return submitit.helpers.DelayedSubmission(TrainJob(self.entry, self.command))

    def _note_termination(self, _number: int, _frame) -> None:
        self._terminated = True

    def _ended(self) -> bool:
        """Whether the training has ended, asked without ``Popen``'s lock.

        The signal handler may have interrupted a ``poll`` that holds it.
        """
        if self._process is None or self._process.returncode is not None:
            return True
        try:
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        except ChildProcessError:
            return True


def live_jobs() -> set[str] | None:
    """Ids of this user's jobs that are queued or running; None if Slurm does not answer."""
    query = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return set(answer.stdout.split()) if answer.returncode == 0 else None


def recorded_job(entry: Entry) -> str | None:
    """The id of the job that ``entry`` was last submitted as; None if it never was."""
    try:
        return str(json.loads((entry.run_dir / JOB_FILE).read_text())["job_id"])
    except (OSError, ValueError, KeyError):
        return None


def _number(text: str):
    return int(text) if text.isdigit() else text


def check_commands() -> None:
    """Refuse a machine without Slurm's commands."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError(
            "--executor slurm needs the commands sbatch and srun, which are not on PATH; "
            "--executor local trains on this machine"
        )


def executor(
    folder: Path,
    *,
    gpus_per_run: int = 1,
    workers: int | None = None,
    time_min: int = 240,
    partition: str | None = None,
    account: str | None = None,
    extra: Sequence[str] = (),
) -> submitit.SlurmExecutor:
    """A Slurm executor of submitit for runs of this project.

    Args:
        folder: for submitit's job files and logs; must be visible on the nodes.
        gpus_per_run: GPUs a run is spread over; 0 trains on CPU.
        workers: how many jobs may run at a time; None leaves that to Slurm.
        time_min: time limit of a job in minutes; a run that needs longer is queued again.
        partition: Slurm's partition; None for the default.
        account: Slurm's account; None for the default.
        extra: further ``key=value`` of sbatch, e.g. ``constraint=a100``, ``mem=64GB``.

    Raises:
        UserError: there is no Slurm here, or an option that it does not take.
    """
    check_commands()
    parameters = {
        "job_name": "powerstep",
        "time": time_min,
        "signal_delay_s": SAVE_SECONDS,
        "cpus_per_task": 4 * max(1, gpus_per_run),
        "stderr_to_stdout": True,
    }
    if gpus_per_run:
        parameters["gpus_per_node"] = gpus_per_run
    if workers:
        parameters["array_parallelism"] = workers
    if partition:
        parameters["partition"] = partition
    if account:
        parameters["account"] = account
    known = submitit.SlurmExecutor._valid_parameters()
    other = {"requeue": True}  # a job that Slurm itself pre-empts comes back too
    for item in extra:
        key, found, value = item.partition("=")
        if not found or not key:
            raise UserError(f"--slurm {item!r} is not of the form key=value, e.g. mem=64GB")
        (parameters if key in known else other)[key] = _number(value)
    out = submitit.SlurmExecutor(folder, max_num_timeout=TIMEOUTS)
    out.update_parameters(**parameters, additional_parameters=other)
    return out


def submit(
    entries: Sequence[Entry],
    executor: submitit.Executor,
    *,
    processes: int = 1,
    command: Callable[[Entry, int], list[str]] = train_command,
) -> dict[str, submitit.Job]:
    """Submit a job for each entry (on Slurm, all of them as one array).

    An entry whose earlier job is still in Slurm's queue keeps that job.

    Args:
        entries: the runs that are left to do.
        executor: submitit's.
        processes: processes a run is spread over, through torchrun above 1.
        command: from an entry and a number of processes to the command that trains it.

    Returns:
        The new jobs, by the name of their run.

    Raises:
        UserError: Slurm does not say which jobs are queued, or refuses the new ones.
    """
    fresh = list(entries)
    if isinstance(executor, submitit.SlurmExecutor):
        live = live_jobs()
        if live is None:
            raise UserError("squeue does not answer: nothing submitted, lest a run be queued twice")
        fresh = [entry for entry in entries if recorded_job(entry) not in live]
    if not fresh:
        return {}
    try:
        with executor.batch():
            jobs = [executor.submit(TrainJob(entry, command(entry, processes))) for entry in fresh]
    except submitit.core.utils.FailedJobError as error:
        raise UserError(f"Slurm refuses the jobs: {' '.join(str(error).split())}") from None
    for entry, job in zip(fresh, jobs, strict=True):
        entry.run_dir.mkdir(parents=True, exist_ok=True)
        (entry.run_dir / JOB_FILE).write_text(json.dumps({"job_id": str(job.job_id)}))
    return {entry.name: job for entry, job in zip(fresh, jobs, strict=True)}
