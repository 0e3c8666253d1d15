"""Checkpoints that survive being killed, cut, flipped and filled disks.

A file ``step-00001500-<16 hex>.pt`` carries in its name the start of its content's SHA-256: one
rename makes it appear whole, and any later change of a bit is found. Only plain types and tensors
go in, so that ``torch.load(weights_only=True)`` reads them and nothing is ever unpickled.
"""

import hashlib
import io
import os
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from nanogpt.errors import CheckpointError, UserError

FORMAT = 1
DIGITS = 16  # of the digest, in the name
NAME = re.compile(r"step-(\d+)-([0-9a-f]{16})\.pt")
PART = re.compile(r"step-\d+\.pt\.tmp")  # one being written, or left by a writer that was killed
PLAIN = (type(None), bool, int, float, str)


class CheckpointStore:
    """A run's folder of checkpoints.

    Only files named as this class names them are its own; a copy under another name is left alone.

    Args:
        folder: Made on the first save.
        config: Plain dict; a checkpoint written under another one is refused on loading.
        keep: Newest checkpoints that stay on disk, at least 1.
    """

    def __init__(self, folder: str | Path, config: dict[str, Any], keep: int = 2):
        if keep < 1:
            raise UserError(f"keep_checkpoints is {keep}; it must be at least 1")
        self.folder = Path(folder)
        self.config = _plain(config, "config")
        self.keep = keep

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the checkpoint of ``step``; then remove those beyond ``keep``.

        Args:
            step: Optimizer steps taken.
            state: Tensors and plain types, in dicts and lists as deep as they come.

        Raises:
            CheckpointError: It could not be written. Earlier ones are untouched.
            TypeError: The state holds something else, a part of a sharded tensor for one.
        """
        payload = {"format": FORMAT, "step": step, "config": self.config, "state": state}
        payload = _plain(payload, "checkpoint")
        part = self.folder / f"step-{step:08d}.pt.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _HashingFile(part) as file:
                torch.save(payload, file)
                file.flush()
                os.fsync(file.fileno())
            newest = self.folder / f"step-{step:08d}-{file.digest()}.pt"
            os.replace(part, newest)
            _sync_folder(self.folder)
        except (OSError, RuntimeError) as error:
            with suppress(OSError):
                part.unlink()
            # Torch follows a failed write by an error of its own, which does not say why.
            why = error.__context__ if isinstance(error.__context__, OSError) else error
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.folder}: {why}"
            ) from error
        self._rotate(step, newest)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Return (step, state) of the newest valid checkpoint, tensors on the CPU; None if none.

        Each damaged one that is passed over is named in a warning.

        Raises:
            UserError: The newest valid one is of another format or configuration, or none of
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
            raise UserError(
                f"checkpoint {path} has format {payload['format']}; this version reads {FORMAT}"
            )
        there, here = _flat(payload["config"]), _flat(self.config)
        differing = [
            f"{key} ({there.get(key, 'absent')!r} there, {here.get(key, 'absent')!r} here)"
            for key in sorted(there.keys() | here.keys())
            if there.get(key, "absent") != here.get(key, "absent")
        ]
        if differing:
            raise UserError(
                f"checkpoint {path} belongs to another configuration: {', '.join(differing)}"
            )

    def _newest_first(self) -> list[Path]:
        found = [path for path in self.folder.glob("step-*.pt") if NAME.fullmatch(path.name)]
        return sorted(found, key=_step_of, reverse=True)

    def _rotate(self, step: int, newest: Path) -> None:
        ours = self._newest_first()
        # A file that claims this step or a later one was passed over as damaged when the run
        # resumed; left in place, it would take a healthy file's turn.
        stay = {newest, *[path for path in ours if _step_of(path) < step][: self.keep - 1]}
        parts = [path for path in self.folder.glob("*.tmp") if PART.fullmatch(path.name)]
        for path in {*ours, *parts} - stay:
            path.unlink(missing_ok=True)


class _HashingFile(io.BufferedWriter):
    """A new file that hashes what is written to it."""

    def __init__(self, path: Path):
        super().__init__(io.FileIO(path, "wb"))
        self._hash = hashlib.sha256()

    def write(self, data: memoryview) -> int:
        self._hash.update(data)
        return super().write(data)

    def digest(self) -> str:
        return self._hash.hexdigest()[:DIGITS]


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
        raise UserError(
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
    """Return ``value`` with its dicts made plain; refuse what ``weights_only`` would not load.

    A subclass of tensor is refused too: of a sharded one, this process holds only a part.
    """
    if isinstance(value, dict):
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item, f"{where}[{i}]") for i, item in enumerate(value))
    if type(value) in (torch.Tensor, torch.nn.Parameter, *PLAIN):
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
