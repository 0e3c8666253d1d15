"""Where a run's numbers come from: versions, revision, sources, machine."""

import hashlib
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


def code_state() -> dict[str, Any]:
    """Return ``git_revision`` and ``git_dirty`` of the checkout, and ``sources_sha256``.

    The first two are null where there is no checkout. A copy that travelled without its history (an
    archive, a container) can name its revision in the environment variable
    ``POWERSTEP_REPRO_REVISION``; whether it was changed is then unknown, but its sources tell.
    """
    state = {"git_revision": None, "git_dirty": None, "sources_sha256": sources_sha256()}
    if revision := os.environ.get("POWERSTEP_REPRO_REVISION"):
        return state | {"git_revision": revision}
    # An installed copy may lie inside some other project's repository.
    if _git("rev-parse", "--show-toplevel") != str(ROOT):
        return state
    changed = _git("status", "--porcelain", "--untracked-files=no")
    dirty = None if changed is None else bool(changed)
    return state | {"git_revision": _git("rev-parse", "HEAD"), "git_dirty": dirty}


def sources_sha256() -> str:
    """Return one SHA-256 over the names and contents of the two packages' ``.py`` files."""
    digest = hashlib.sha256()
    packages = Path(__file__).parents[2]
    for package in ("nanogpt", "powerstep_repro"):
        for path in sorted((packages / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(packages).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


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
