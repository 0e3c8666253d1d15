"""Follow the jobs of a sweep on a cluster until their runs have ended."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import submitit

from powerstep_repro.sweep.local import Outcome, log_path
from powerstep_repro.sweep.plan import Entry
from powerstep_repro.sweep.resources import Worker
from powerstep_repro.sweep.slurm import live_jobs, recorded_job
from powerstep_repro.sweep.state import BUSY, DONE, last_words

LOOK_SECONDS = 2.0  # how often the runs' records are read
QUEUE_SECONDS = 30.0  # how often Slurm is asked


@dataclass(frozen=True)
class JobPlace(Worker):
    """The job that trains a run, in a worker's place."""

    job_id: str = ""

    @property
    def label(self) -> str:
        """How the overview names it."""
        return f"job {self.job_id}"


@dataclass
class Running:
    """A run whose job is training it."""

    entry: Entry
    worker: JobPlace
    started: float


class Watch:
    """Waits until every run is done or its job has ended without a result.

    Ctrl-C ends the watching alone: the jobs stay where they are.

    Args:
        entries: the runs.
        jobs: the jobs just submitted, by the name of their run; those of other runs are on record.
        reporter: told what happens.
    """

    def __init__(self, entries: Sequence[Entry], jobs: dict[str, submitit.Job], reporter):
        self.queue = list(entries)
        self.active: list[Running] = []
        self.busy: list[Entry] = []
        self.outcome = Outcome()
        self._jobs = jobs
        self._reporter = reporter
        self._asked = time.monotonic()
        self._stopped = 0

    def run(self) -> Outcome:
        """Watch; returns how it went."""
        caught = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self._note_signal) for number in caught}
        try:
            with self._reporter.watching(self):
                while (self.queue or self.active) and not self._stopped:
                    self._look()
                    self._reporter.tick(self)
                    time.sleep(min(LOOK_SECONDS, self._reporter.every))
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        self.outcome.signal = self._stopped
        self.outcome.left = [*self.queue, *(running.entry for running in self.active)]
        return self.outcome

    def _note_signal(self, number: int, _frame) -> None:
        self._stopped = number

    def _look(self) -> None:
        over = self._jobs_over()
        running = {item.entry.name: item for item in self.active}
        for entry in [*self.queue, *(item.entry for item in self.active)]:
            state = entry.refresh()
            if state == DONE or entry.name in over:
                self.queue = [other for other in self.queue if other is not entry]
                self.active = [item for item in self.active if item.entry is not entry]
                if entry.refresh() == DONE:
                    self.outcome.done.append(entry)
                    self._reporter.ended(entry, running.get(entry.name))
                else:
                    why = f"its job ended: {last_words(log_path(entry)) or 'no output'}"
                    self.outcome.failed.append((entry, why))
                    self._reporter.failed(entry, why)
            elif state == BUSY and entry.name not in running:
                place = JobPlace(len(self.active), job_id=recorded_job(entry) or "?")
                self.queue.remove(entry)
                self.active.append(Running(entry, place, time.time()))
                self._reporter.started(self.active[-1])
            elif state != BUSY and entry.name in running:  # pre-empted: back in the queue
                self.active.remove(running[entry.name])
                self.queue.append(entry)

    def _jobs_over(self) -> set[str]:
        """Names of the runs whose jobs have ended, for whatever reason."""
        others = [job for job in self._jobs.values() if not isinstance(job, submitit.SlurmJob)]
        if others:  # submitit's local jobs: processes of this one
            return {name for name, job in self._jobs.items() if job.done()}
        if time.monotonic() - self._asked < QUEUE_SECONDS:
            return set()
        self._asked = time.monotonic()
        live = live_jobs()
        if live is None:  # Slurm is busy; ask again later
            return set()
        left = [*self.queue, *(item.entry for item in self.active)]
        return {entry.name for entry in left if recorded_job(entry) not in live}
