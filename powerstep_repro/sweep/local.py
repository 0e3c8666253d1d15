"""Train a sweep on this machine: a pool of workers, one process a run.

A process of its own for each run keeps memory figures, W&B runs and crashes apart, and lets a run
be spread over GPUs by torchrun. What happened to a run is read from its record, never guessed from
an exit code alone: torchrun, for one, ends with 1 whatever its ranks ended with.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from powerstep_repro.runs.files import SUMMARY
from powerstep_repro.sweep import launch
from powerstep_repro.sweep.plan import Entry
from powerstep_repro.sweep.resources import Worker
from powerstep_repro.sweep.state import BUSY, DONE, HEADER, last_words

POLL_SECONDS = 0.1
BUSY_SECONDS = 2.0  # how often a run that another process trains is looked at
KILLED_CODES = {128 + signal.SIGINT, 128 + signal.SIGKILL, 128 + signal.SIGTERM}


def train_command(entry: Entry, processes: int) -> list[str]:
    """The command that trains ``entry``, through torchrun if it is spread over several processes.

    ``--standalone`` gives each torchrun a rendezvous port of its own, so that runs side by side do
    not meet.
    """
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    return [*start, "powerstep_repro.train", *entry.overrides]


def log_path(entry: Entry) -> Path:
    """Where the run's output goes."""
    return entry.run_dir / "log.txt"


def start(entry: Entry, command: Sequence[str], env: dict[str, str]) -> subprocess.Popen:
    """Start ``command`` for ``entry``, its output appended to the run's log.

    It gets a session of its own: Ctrl-C at a terminal reaches the sweep alone, which passes it on
    once (a second signal would make the training stop without saving).
    """
    entry.run_dir.mkdir(parents=True, exist_ok=True)
    with open(log_path(entry), "ab") as log:
        # "python" instead of its path: logs are kept as evidence, and read the same anywhere.
        words = shlex.join(["python", *command[1:]])
        log.write(f"{HEADER}{time.strftime('%Y-%m-%d %H:%M:%S')} {words}\n".encode())
        log.flush()
        return subprocess.Popen(
            [sys.executable, "-IS", launch.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )


def describe_exit(code: int) -> str:
    """An exit code in words: "exit code 1", or the signal that ended the process."""
    number = -code if code < 0 else code - 128 if code in KILLED_CODES else None
    if number is None:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"


@dataclass
class Active:
    """A run that is being trained: its process, its worker, when it started."""

    entry: Entry
    worker: Worker
    process: subprocess.Popen
    started: float  # time.time()


@dataclass
class Outcome:
    """How a sweep ended.

    Args:
        done: runs that are finished or diverged now, those trained elsewhere meanwhile included.
        failed: (run, why) of each run that failed.
        left: runs not done because the sweep was stopped.
        signal: the signal that stopped the sweep, 0 if none did.
    """

    done: list[Entry] = field(default_factory=list)
    failed: list[tuple[Entry, str]] = field(default_factory=list)
    left: list[Entry] = field(default_factory=list)
    signal: int = 0

    @property
    def exit_code(self) -> int:
        """0, 1 if a run failed, 130 or 143 if the sweep was stopped."""
        return 128 + self.signal if self.signal else int(bool(self.failed))


class Pool:
    """Trains entries on workers until all are done, have failed, or the sweep is stopped.

    The first SIGINT, SIGTERM or SIGHUP is passed on to the runs, which finish their step, save and
    end; the pool waits for them. A second is passed on too (the runs stop at once), a third kills.

    Args:
        entries: what to train, in this order.
        workers: where.
        command: from an entry and a number of processes to the command that trains it.
        reporter: told what happens; see ``report.Reporter``.
        retries: how often a run that was killed from outside (out of memory, by hand) is started
            again within this sweep. A run that failed by itself would fail again, and is not.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        workers: Sequence[Worker],
        reporter,
        *,
        command: Callable[[Entry, int], list[str]] = train_command,
        retries: int = 2,
    ):
        self.queue = deque(entries)
        self.busy: list[Entry] = []
        self.free = list(reversed(workers))
        self.active: list[Active] = []
        self.outcome = Outcome()
        self._reporter = reporter
        self._command = command
        self._retries = retries
        self._kills: dict[str, int] = {}
        self._signals: list[int] = []
        self._passed_on = 0
        self._looked = 0.0

    def run(self) -> Outcome:
        """Train everything; returns how it went."""
        caught = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        previous = {number: signal.signal(number, self._note_signal) for number in caught}
        try:
            with self._reporter.watching(self):
                while self.queue or self.active or self.busy:
                    self._pass_on_signals()
                    if self.outcome.signal:
                        self._give_up_queue()
                    else:
                        self._look_at_busy()
                        self._start_runs()
                    self._collect()
                    self._reporter.tick(self)
                    time.sleep(POLL_SECONDS)
        finally:
            for active in self.active:  # only after an error of our own: leave no process behind
                active.process.send_signal(signal.SIGTERM)
            for number, handler in previous.items():
                signal.signal(number, handler)
        return self.outcome

    def _note_signal(self, number: int, _frame) -> None:
        self._signals.append(number)

    def _pass_on_signals(self) -> None:
        while self._passed_on < len(self._signals):
            number = self._signals[self._passed_on]
            self._passed_on += 1
            if not self.outcome.signal:
                self.outcome.signal = signal.SIGTERM if number == signal.SIGHUP else number
            self._reporter.stopping(number, self._passed_on)
            for active in self.active:
                if self._passed_on < 3:
                    active.process.send_signal(self.outcome.signal)
                else:
                    os.killpg(active.process.pid, signal.SIGKILL)

    def _give_up_queue(self) -> None:
        self.outcome.left += [*self.queue, *self.busy]
        self.queue.clear()
        self.busy.clear()

    def _look_at_busy(self) -> None:
        """Take back runs that another process has let go of."""
        if not self.busy or time.monotonic() - self._looked < BUSY_SECONDS:
            return
        self._looked = time.monotonic()
        for entry in self.busy[:]:
            if entry.refresh() != BUSY:
                self.busy.remove(entry)
                self.queue.append(entry)

    def _start_runs(self) -> None:
        while self.queue and (self.free or self.queue[0].state in (DONE, BUSY)):
            entry = self.queue.popleft()
            # Another sweep on the same folder may have been here since the plan was made.
            state = entry.refresh()
            if state == DONE:
                self.outcome.done.append(entry)
                self._reporter.ended(entry, None)
            elif state == BUSY:
                self.busy.append(entry)
                self._reporter.waiting(entry)
            elif not self.free:
                self.queue.appendleft(entry)
                break
            else:
                worker = self.free.pop()
                command = self._command(entry, max(1, len(worker.gpus)))
                process = start(entry, command, worker.environment(os.environ))
                self.active.append(Active(entry, worker, process, time.time()))
                self._reporter.started(self.active[-1])

    def _collect(self) -> None:
        """Judge the runs whose process has ended."""
        for active in self.active[:]:
            code = active.process.poll()
            if code is None:
                continue
            self.active.remove(active)
            self.free.append(active.worker)
            entry = active.entry
            state = entry.refresh()
            if state == DONE:
                self.outcome.done.append(entry)
                self._reporter.ended(entry, active)
            elif self.outcome.signal:
                self.outcome.left.append(entry)
                self._reporter.interrupted(entry)
            elif state == BUSY:  # another process was faster to take the run's lock
                self.busy.append(entry)
                self._reporter.waiting(entry)
            elif self._was_killed(active, code) and self._may_try_again(entry):
                self.queue.appendleft(entry)
                self._reporter.again(entry, describe_exit(code))
            else:
                why = describe_exit(code)
                if said := last_words(log_path(entry)):
                    why = f"{why}: {said}"
                self.outcome.failed.append((entry, why))
                self._reporter.failed(entry, why)

    @staticmethod
    def _was_killed(active: Active, code: int) -> bool:
        """Whether a signal ended the run, seen from its exit code or from its record."""
        if code < 0 or code in KILLED_CODES:
            return True
        try:
            written = (active.entry.run_dir / SUMMARY).stat().st_mtime
        except OSError:
            return False
        status = active.entry.summary.get("status")
        return code != 0 and status in ("running", "interrupted") and written >= active.started

    def _may_try_again(self, entry: Entry) -> bool:
        self._kills[entry.name] = self._kills.get(entry.name, 0) + 1
        return self._kills[entry.name] <= self._retries
