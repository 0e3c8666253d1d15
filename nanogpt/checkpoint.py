"""Checkpoints that survive being killed, cut, flipped and filled disks.

A file ``step-00001500-<16 hex>.pt`` carries in its name the start of its content's SHA-256: one
rename makes it appear whole, and any later change of a bit is found. Only plain types and tensors
go in, so that ``torch.load(weights_only=True)`` reads them and nothing is ever unpickled.
"""

import hashlib
import os
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nanogpt.errors import CheckpointError, InputError

FORMAT = 1
NAME = re.compile(r"step-(\d+)-([0-9a-f]{16})\.pt")
DIGITS = 16  # of the digest, in the name


class CheckpointStore:
    """A run's folder of checkpoints.

    Args:
        folder: Made on the first save.
        config: Plain dict; a checkpoint written under another one is refused on loading.
        keep: Newest checkpoints that stay on disk, at least 1.
        on_stage: Called with ``writing`` (before each piece is written), ``written`` (all bytes
            down, not yet renamed) and ``renamed`` (older ones not yet removed). Tests stop the
            process there.
    """

    def __init__(
        self,
        folder: str | Path,
        config: dict[str, Any],
        keep: int = 2,
        on_stage: Callable[[str], None] | None = None,
    ):
        if keep < 1:
            raise InputError(f"keep_checkpoints is {keep}; it must be at least 1")
        self.folder = Path(folder)
        self.config = _plain(config, "config")
        self.keep = keep
        self.on_stage = on_stage or (lambda stage: None)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the checkpoint of ``step``; then remove those beyond ``keep``.

        Raises:
            CheckpointError: It could not be written. Earlier ones are untouched.
        """
        payload = {"format": FORMAT, "step": step, "config": self.config, "state": state}
        payload = _plain(payload, "checkpoint")
        part = self.folder / f"step-{step:08d}.pt.tmp"
        writer = _HashingWriter(part, self.on_stage)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with writer:
                torch.save(payload, writer)
            self.on_stage("written")
            final = self.folder / f"step-{step:08d}-{writer.digest()}.pt"
            os.replace(part, final)
            _sync_folder(self.folder)
        except (OSError, RuntimeError) as error:  # torch follows a failed write by a RuntimeError
            with suppress(OSError):
                part.unlink()
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.folder}: "
                f"{writer.error or error}"
            ) from error
        self.on_stage("renamed")
        self._rotate(step, final)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Return (step, state) of the newest valid checkpoint, tensors on the CPU; None if none.

        Each damaged one that is passed over is named in a warning.

        Raises:
            InputError: The newest valid one is of another format or configuration, or none of
                ours at all.
        """
        for path in self._newest_first():
            if reason := _damage(path):
                warnings.warn(f"checkpoint {path} is passed over: {reason}", stacklevel=2)
                continue
            payload = _read(path)
            self._check(path, payload)
            return payload["step"], payload["state"]
        return None

    def _check(self, path: Path, payload: dict[str, Any]) -> None:
        if payload["format"] != FORMAT:
            raise InputError(
                f"checkpoint {path} has format {payload['format']}; this version reads {FORMAT}"
            )
        there, here = _flat(payload["config"]), _flat(self.config)
        differing = [
            f"{key} ({there.get(key, 'absent')!r} there, {here.get(key, 'absent')!r} here)"
            for key in sorted(there.keys() | here.keys())
            if there.get(key, "absent") != here.get(key, "absent")
        ]
        if differing:
            raise InputError(
                f"checkpoint {path} belongs to another configuration: {', '.join(differing)}"
            )

    def _newest_first(self) -> list[Path]:
        found = [path for path in self.folder.glob("step-*.pt") if NAME.fullmatch(path.name)]
        return sorted(found, key=_step_of, reverse=True)

    def _rotate(self, step: int, newest: Path) -> None:
        # A file that claims this step or a later one was passed over as damaged when the run
        # resumed; left in place, it would take a healthy file's turn.
        older = [path for path in self._newest_first() if _step_of(path) < step]
        stay = {newest, *older[: self.keep - 1]}
        for path in self.folder.glob("step-*.pt*"):  # parts of a killed writer, too
            if path not in stay:
                path.unlink(missing_ok=True)


class _HashingWriter:
    """A file being written that hashes its content and remembers why a write failed."""

    def __init__(self, path: Path, on_stage: Callable[[str], None]):
        self.path, self.on_stage = path, on_stage
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def __enter__(self) -> None:
        self.file = open(self.path, "wb")

    def __exit__(self, *exception) -> None:
        with self.file:
            self.flush()
            os.fsync(self.file.fileno())

    def write(self, data: memoryview) -> int:
        try:
            self.on_stage("writing")
            written = self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(data)
        return written

    def flush(self) -> None:
        self.file.flush()

    def digest(self) -> str:
        return self.hash.hexdigest()[:DIGITS]


def _step_of(path: Path) -> int:
    return int(NAME.fullmatch(path.name)[1])


def _damage(path: Path) -> str | None:
    """Say what is wrong with a checkpoint file; None if nothing is."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    except OSError as error:
        return f"it cannot be read ({error})"
    if digest.hexdigest()[:DIGITS] != NAME.fullmatch(path.name)[2]:
        return "its content does not match the digest in its name (cut or altered)"
    return None


def _read(path: Path) -> dict[str, Any]:
    """Load an undamaged file; nothing in it is ever run."""
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
        payload["format"]
    except Exception as error:  # torch has many kinds for it, and advice that we do not pass on
        raise InputError(
            f"checkpoint {path} is none of this project: it cannot be loaded as plain types and "
            f"tensors ({type(error).__name__}), and nothing else is"
        ) from error
    return payload


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _plain(value: Any, where: str) -> Any:
    """Return ``value`` with its dicts made plain; refuse what ``weights_only`` would not load."""
    if isinstance(value, dict):
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(value, torch.Tensor) or type(value) in (type(None), bool, int, float, str):
        return value
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds "
        "tensors and plain types only"
    )


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to dotted keys."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
