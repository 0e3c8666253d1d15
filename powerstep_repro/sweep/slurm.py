"""Train a sweep as Slurm jobs, one job a run, through submitit.

The job trains in a process of its own, as on one machine. When Slurm announces that the job's time
is up or that it is pre-empted, submitit calls ``TrainJob.checkpoint`` and queues the job again:
the training is told to save, and when it is the job's turn again, the run goes on from there.

submitit hands a job over as a pickle that it writes below the results folder and reads again in the
job; nothing from elsewhere is ever unpickled.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import submitit

from nanogpt.signals import handling
from powerstep_repro.errors import UserError
from powerstep_repro.sweep.local import Outcome, start, train_command, why_it_ended
from powerstep_repro.sweep.overview import Overview
from powerstep_repro.sweep.plan import DONE, Entry

SAVE_SECONDS = 120  # between Slurm's announcement and the end of the job, if that is long enough
TIMEOUTS = 1000  # a run may outlast the time limit this often; each time it is queued again
POLL_SECONDS = 1.0


class TrainJob(submitit.helpers.Checkpointable):
    """One run as a job: called, it trains; ``checkpoint`` hands it back to the queue.

    Args:
        entry: The run.
        command: The command that trains it.
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
            RuntimeError: The run has not ended as finished or diverged, so that the job counts as
                failed.
        """
        # Slurm sends SIGTERM to every process of a job, the training too: it saves and ends by
        # itself. The job then holds still until Slurm ends it, or it would count as failed instead
        # of coming back into the queue.
        with handling(self._note_termination, [signal.SIGTERM]):
            self._process = start(self.entry, self.command, dict(os.environ))
            self._wait()
            code = self._process.wait()
            while self._terminated and self.entry.refresh() != DONE:
                signal.pause()
        if self.entry.refresh() != DONE:
            raise RuntimeError(why_it_ended(self.entry, code))
        return self.entry.summary["status"]

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Save; called by submitit in its signal handler, before it queues the job again."""
        # One signal only: the training takes a second one for "at once, without saving".
        if self._process is not None and not self._terminated:
            self._process.send_signal(signal.SIGTERM)
        self._wait()
        return submitit.helpers.DelayedSubmission(self)

    def _wait(self) -> None:
        """Wait for the training's end and leave its exit code to ``Popen``, whose lock the call
        that a signal interrupted may hold.
        """
        if self._process is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def _note_termination(self, _number: int, _frame) -> None:
        self._terminated = True


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
    """Return a Slurm executor of submitit for runs of this project.

    Args:
        folder: For submitit's job files and logs; must be visible on the nodes.
        gpus_per_run: GPUs a run is spread over; 0 trains on CPU.
        workers: How many jobs may run at a time; None leaves that to Slurm.
        time_min: Time limit of a job in minutes; a run that needs longer is queued again.
        partition: Slurm's partition; None for the default.
        account: Slurm's account; None for the default.
        extra: Further ``key=value`` of sbatch, e.g. ``constraint=a100``, ``mem=64GB``.

    Raises:
        UserError: There is no Slurm here, or an option that it does not take.
    """
    check_commands()
    parameters = {
        "job_name": "powerstep",
        "time": time_min,
        # Within the limit: half of a short one is left to train.
        "signal_delay_s": min(SAVE_SECONDS, 30 * time_min),
        "cpus_per_task": 4 * max(1, gpus_per_run),
        "gpus_per_node": gpus_per_run or None,
        "array_parallelism": workers,
        "partition": partition,
        "account": account,
        "stderr_to_stdout": True,
    }
    parameters = {key: value for key, value in parameters.items() if value is not None}
    known = submitit.SlurmExecutor._valid_parameters()
    other = {"requeue": True}  # a job that Slurm itself pre-empts comes back too
    for item in extra:
        key, found, value = item.partition("=")
        if not found or not key:
            raise UserError(f"--slurm {item!r} is not of the form key=value, e.g. mem=64GB")
        target = parameters if key in known else other
        target[key] = int(value) if value.isdigit() else value
    out = submitit.SlurmExecutor(folder, max_num_timeout=TIMEOUTS)
    out.update_parameters(**parameters, additional_parameters=other)
    return out


def submit(
    entries: Sequence[Entry],
    executor: submitit.Executor,
    *,
    processes: int = 1,
    command: Callable[[Entry, int], list[str]] = train_command,
) -> list[submitit.Job]:
    """Submit a job for each entry, on Slurm all of them as one array; returns them in order.

    A job that finds its run done, because it was submitted twice, ends at once.

    Args:
        entries: The runs that are left to do.
        executor: submitit's.
        processes: Processes a run is spread over, through torchrun above 1.
        command: From an entry and a number of processes to the command that trains it.

    Raises:
        UserError: Slurm refuses the jobs.
    """
    # sbatch hands its environment on. What describes the job or shell that submits (SLURM_CPU_BIND
    # and the like) would bind the new job too; what configures sbatch itself stays.
    stays = {k: v for k, v in os.environ.items() if k.startswith("SBATCH_") or k == "SLURM_CONF"}
    try:
        with submitit.helpers.clean_env(), executor.batch():
            os.environ.update(stays)
            return [executor.submit(TrainJob(each, command(each, processes))) for each in entries]
    except submitit.core.utils.FailedJobError as error:
        raise UserError(f"Slurm refuses the jobs: {' '.join(str(error).split())}") from None


def follow(entries: Sequence[Entry], jobs: Sequence[submitit.Job], overview: Overview) -> Outcome:
    """Wait until every job has ended, and judge its run by the record. Ctrl-C leaves them alone."""
    outcome = Outcome()
    waiting = list(zip(entries, jobs, strict=True))
    try:
        with overview.shown():
            while waiting:
                for entry, job in waiting[:]:
                    if not job.done():
                        continue
                    waiting.remove((entry, job))
                    if entry.refresh() == DONE:
                        outcome.done.append(entry)
                        overview.ended(entry, entry.summary.get("wall_s"))
                    else:
                        why = f"its job {job.job_id} ended: {why_it_ended(entry, 1)}"
                        outcome.failed.append((entry, why))
                        overview.failure(entry, why)
                overview.running = sum(job.state == "RUNNING" for _, job in waiting)
                overview.tick()
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        outcome.signal = signal.SIGINT
        outcome.left = [entry for entry, _ in waiting]
    return outcome
