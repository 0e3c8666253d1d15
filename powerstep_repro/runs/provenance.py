"""Where a run's numbers come from: versions, revision, machine."""

import os
import platform
import resource
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from powerstep_repro import __version__
from powerstep_repro.config.paths import ROOT

_PACKAGES = ("torch", "numpy", "transformers", "triton", "hydra-core")


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the libraries that can change numbers."""
    found = {"python": platform.python_version(), "powerstep_repro": __version__}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return out.stdout.strip()


def git_state() -> dict[str, Any]:
    """Return ``git_revision`` and ``git_dirty`` of the checkout; null where there is none.

    A copy that travelled without its history (an archive, a container) can name its revision in
    the environment variable ``POWERSTEP_REPRO_REVISION``; whether it was changed is then unknown.
    """
    if revision := os.environ.get("POWERSTEP_REPRO_REVISION"):
        return {"git_revision": revision, "git_dirty": None}
    # An installed copy may lie inside some other project's repository.
    if _git("rev-parse", "--show-toplevel") != str(ROOT):
        return {"git_revision": None, "git_dirty": None}
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "git_revision": _git("rev-parse", "HEAD"),
        "git_dirty": None if changed is None else bool(changed),
    }


def processor_name() -> str:
    """Return the CPU's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def card_uuid() -> str | None:
    """Return the current CUDA device's own identity, where torch tells it."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return None if uuid is None else str(uuid)


def peak_process_bytes() -> int:
    """Return the most memory that this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
