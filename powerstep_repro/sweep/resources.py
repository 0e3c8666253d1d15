"""What this machine can lend to runs: GPUs, one or more a worker, or shares of its cores."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from powerstep_repro.errors import UserError


@dataclass(frozen=True)
class Worker:
    """A place where one run at a time is trained.

    Args:
        index: 0-based number, for display.
        gpus: the devices it owns, as CUDA_VISIBLE_DEVICES names them; empty for a CPU worker.
        threads: threads a process of it may use; None leaves the environment's choice.
    """

    index: int
    gpus: tuple[str, ...] = ()
    threads: int | None = None

    @property
    def label(self) -> str:
        """How the overview names it."""
        return f"GPU {','.join(self.gpus)}" if self.gpus else f"CPU {self.index}"

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with this worker's devices and threads."""
        env = dict(base)
        if self.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        if self.threads is not None:
            env["OMP_NUM_THREADS"] = str(self.threads)
        return env


def visible_gpus(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that may be used, as CUDA_VISIBLE_DEVICES names them (found without torch).

    A CUDA_VISIBLE_DEVICES that is set is all there is: as in CUDA, the empty string and everything
    from the first negative number on mean none.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        gpus = []
        for device in (part.strip() for part in chosen.split(",")):
            if not device or device.startswith("-"):
                break
            gpus.append(device)
        return tuple(gpus)
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        out = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in out.splitlines() if line.strip().isdigit())


def usable_cores() -> int:
    """Cores that this process may use, by its CPU affinity and its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


def make_workers(
    runs: int,
    *,
    use_gpus: bool = True,
    workers: int | None = None,
    gpus_per_run: int = 1,
    environ: Mapping[str, str] = os.environ,
    cores: int | None = None,
) -> list[Worker]:
    """Split this machine among the workers of a sweep.

    With GPUs, each worker owns ``gpus_per_run`` of them. Without, there are as many workers as
    cores, never more than runs, and the cores are shared out among them as OMP_NUM_THREADS; one
    that is set already is kept and counted with.

    Args:
        runs: how many runs are to be trained.
        use_gpus: False leaves GPUs alone (``device=cpu``).
        workers: how many, instead of as many as fit.
        gpus_per_run: GPUs a run is spread over; above 1 it is started through torchrun.
        environ: the environment to read.
        cores: usable cores, instead of what this machine says.

    Raises:
        UserError: the GPUs do not suffice for what is asked.
    """
    cores = cores or usable_cores()
    gpus = visible_gpus(environ) if use_gpus else ()
    if gpus_per_run > 1 and len(gpus) < gpus_per_run:
        raise UserError(
            f"--gpus-per-run is {gpus_per_run}, but {len(gpus)} GPUs can be used here: it must be "
            f"{'1' if len(gpus) < 2 else f'from 1 to {len(gpus)}'}"
        )
    own_threads = int(environ.get("OMP_NUM_THREADS") or 0)
    if gpus:
        most = len(gpus) // gpus_per_run
        if workers is not None and workers > most:
            raise UserError(
                f"--workers is {workers}, but {len(gpus)} GPUs at {gpus_per_run} a run keep at "
                f"most {most} workers busy"
            )
        count = min(workers or most, max(1, runs))
        processes = count * gpus_per_run
    else:
        count = workers or cores // max(1, own_threads)
        count = processes = max(1, min(count, runs))
    threads = None if own_threads else max(1, cores // processes)
    return [
        Worker(i, tuple(gpus[i * gpus_per_run : (i + 1) * gpus_per_run]), threads)
        for i in range(count)
    ]
