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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from nanogpt.signals import SIGNALS, handling, leave_terminal
from powerstep_repro.config import Planned
from powerstep_repro.console import table_console
from powerstep_repro.errors import require
from powerstep_repro.sweep import launch, plan
from powerstep_repro.sweep.overview import Overview
from powerstep_repro.sweep.plan import BUSY, DONE, RESUME, Entry
from powerstep_repro.sweep.resources import Worker, make_workers

POLL_SECONDS = 0.1
HEADER = "--- "  # begins the line that a sweep writes into a run's log before each attempt

STOPPING = {
    1: "stopping: the runs finish their step and save (once more: without saving)",
    2: "stopping at once (once more: killing)",
    3: "killing",
}


def train_command(entry: Entry, processes: int) -> list[str]:
    """Return the command that trains ``entry``, through torchrun if spread over processes.

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


def last_words(entry: Entry) -> str:
    """Return what the last attempt in a run's log said before it ended; empty if nothing.

    That is its last one-sentence error (torchrun adds pages of its own after it), else the last
    line with text.
    """
    try:
        lines = log_path(entry).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    words = ""
    for line in map(str.strip, reversed(lines)):
        if line.startswith(HEADER):
            break
        if line.startswith("error: "):
            return line
        words = words or line
    return words


def why_it_ended(entry: Entry, code: int) -> str:
    """Say how a run's process ended: its exit code, or the signal that killed it; its last words.

    torchrun and shells tell of a signal by 128 + its number.
    """
    number = -code if code < 0 else code - 128
    names = {int(each): each.name for each in signal.Signals}
    how = f"killed by {names[number]}" if number in names else f"exit code {code}"
    return ": ".join(filter(None, (how, last_words(entry))))


@dataclass
class Active:
    """A run that is being trained: its process, its worker, when it started."""

    entry: Entry
    worker: Worker
    process: subprocess.Popen
    began: float  # time.monotonic()


@dataclass
class Outcome:
    """How a sweep ended.

    Args:
        done: Runs that are finished or diverged now, those trained elsewhere meanwhile included.
        failed: (run, why) of each run that failed.
        left: Runs not done because the sweep was stopped.
        signal: The signal that stopped the sweep, 0 if none did.
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
        entries: What to train, in this order.
        workers: Where.
        overview: Told what happens.
        command: From an entry and a number of processes to the command that trains it.
        retries: How often a run that was killed from outside (out of memory, by hand) is started
            again within this sweep. A run that failed by itself would fail again, and is not.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        workers: Sequence[Worker],
        overview: Overview,
        *,
        command: Callable[[Entry, int], list[str]] = train_command,
        retries: int = 2,
    ):
        self.queue = list(entries)
        self.waiting: set[str] = set()  # of the queue, what another process was seen to train
        self.free = list(reversed(workers))
        self.active: list[Active] = []
        self.outcome = Outcome()
        self._overview = overview
        self._command = command
        self._retries = retries
        self._kills: dict[Path, int] = {}
        self._signals: list[int] = []
        self._passed_on = 0

    def run(self) -> Outcome:
        """Train everything; returns how it went."""
        with handling(self._note, (*SIGNALS, signal.SIGHUP)), self._overview.shown():
            try:
                while self.queue or self.active:
                    self._pass_on_signals()
                    if self.outcome.signal:
                        self.outcome.left += self.queue
                        self.queue = []
                    else:
                        self._start_runs()
                    for active in self.active[:]:
                        code = active.process.poll()
                        if code is not None:
                            self._judge(active, code)
                    self._overview.running = len(self.active)
                    self._overview.tick()
                    time.sleep(POLL_SECONDS)
            finally:
                for active in self.active:  # only after an error of our own: leave none behind
                    active.process.send_signal(signal.SIGTERM)
        return self.outcome

    def _note(self, number: int, _frame: Any) -> None:
        if number == signal.SIGHUP:  # the terminal has gone
            leave_terminal()
            number = signal.SIGTERM
        self._signals.append(number)

    def _pass_on_signals(self) -> None:
        for number in self._signals[self._passed_on :]:
            self._passed_on += 1
            self.outcome.signal = self.outcome.signal or number
            self._overview.say(STOPPING[min(self._passed_on, 3)])
            for active in self.active:
                if self._passed_on < 3:
                    active.process.send_signal(self.outcome.signal)
                else:
                    os.killpg(active.process.pid, signal.SIGKILL)

    def _start_runs(self) -> None:
        """Give each free worker the next run that is still to do and that nobody else trains."""
        for entry in self.queue[:]:
            if not self.free:
                break
            state = entry.refresh()
            if state == BUSY:
                if entry.run_dir not in self.waiting:
                    self._overview.say(f"waits: another process trains {entry.label}")
                self.waiting.add(entry.run_dir)
                continue
            self.queue.remove(entry)
            if state == DONE:
                self.outcome.done.append(entry)
                self._overview.ended(entry)
                continue
            worker = self.free[-1]
            command = self._command(entry, max(1, len(worker.gpus)))
            try:
                process = start(entry, command, worker.environment(os.environ))
            except OSError as error:  # a full or read-only disk: the others fail alike, in a list
                self._fail(entry, str(error))
                continue
            self.free.pop()
            self.active.append(Active(entry, worker, process, time.monotonic()))
            self._overview.started(entry, worker.label)

    def _judge(self, active: Active, code: int) -> None:
        """Decide what becomes of a run whose process has ended."""
        self.active.remove(active)
        self.free.append(active.worker)
        self._overview.running = len(self.active)
        entry = active.entry
        state = entry.refresh()
        # By a signal, perhaps before it had left a record.
        killed = code < 0 or code > 128 or (state == RESUME and code != 0)
        if state == DONE:
            self.outcome.done.append(entry)
            self._overview.ended(entry, time.monotonic() - active.began)
        elif self.outcome.signal:
            self.outcome.left.append(entry)
            self._overview.say(f"stopped: {entry.label} at step {entry.summary.get('steps') or 0}")
        elif state == BUSY:  # another process was faster to take the run's lock
            self.queue.append(entry)
        elif killed and self._kills.get(entry.run_dir, 0) < self._retries:
            self._kills[entry.run_dir] = self._kills.get(entry.run_dir, 0) + 1
            self.queue.insert(0, entry)
            self._overview.say(
                f"{why_it_ended(entry, code)}: {entry.label}; it goes on where it was"
            )
        else:
            self._fail(entry, why_it_ended(entry, code))

    def _fail(self, entry: Entry, why: str) -> None:
        self.outcome.failed.append((entry, why))
        self._overview.failure(entry, why)


def planned_work(
    planned: Sequence[Planned], title: str, console: Console
) -> tuple[list[Entry], Overview]:
    """Plan runs, print the plan, and return what is left to do with an overview of the whole.

    Raises:
        UserError: Something is lacking for which every run would fail.
    """
    config = planned[0].config
    require("torch", "training", "train")
    if config["logger"]["name"] == "wandb":
        require("wandb", "logger=wandb", "wandb")
    entries = plan.entries(planned)
    todo = plan.work_order(entries)
    show_plan(entries, title, console)
    return todo, Overview(len(entries), len(entries) - len(todo), console)


def train_here(
    planned: Sequence[Planned],
    title: str,
    *,
    workers: int | None = None,
    gpus_per_run: int = 1,
    retries: int = 2,
) -> int:
    """Plan runs and train on this machine what is not done; returns the sweep's exit code."""
    console = table_console()
    todo, overview = planned_work(planned, title, console)
    use_gpus = planned[0].config["device"] in ("auto", "cuda")
    places = make_workers(len(todo), use_gpus=use_gpus, workers=workers, gpus_per_run=gpus_per_run)
    return closing(Pool(todo, places, overview, retries=retries).run(), console) if todo else 0


def show_plan(entries: Sequence[Entry], title: str, console: Console) -> None:
    """Print the plan as a table, and in one line."""
    profile = entries[0].config["profile"]
    console.print(plan.table(entries, f"{title}, profile {profile}"))
    console.print(plan.headline(entries), soft_wrap=True)
    if not all(entry.config["data"]["hash"] for entry in entries):
        console.print("the data is not here: runs on any data are counted, and no name is final")


def closing(outcome: Outcome, console: Console) -> int:
    """Say how the sweep ended, failures last, and return its exit code."""
    parts = [f"{len(outcome.done)} done", f"{len(outcome.failed)} failed"]
    if outcome.left:
        parts.append(f"{len(outcome.left)} left (the same command goes on)")
    lines = [", ".join(parts)]
    for entry, why in outcome.failed:
        lines += [f"failed: {entry.label}: {why}", f"  log: {shlex.quote(str(log_path(entry)))}"]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return outcome.exit_code
