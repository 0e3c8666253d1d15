"""Local text files as a data set.

Each file is a document. The last ``val_fraction`` of every file, from the next line on, is held
out for validation; the rest is for training. Files are read block by block, so that memory does
not grow with them. The data set's folder is named by the files' content and the options: changed
files make a new one.
"""

import glob
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from powerstep_repro.data import tokenizers
from powerstep_repro.data.store import is_complete, write
from powerstep_repro.errors import UserError


def prepare(config: Mapping[str, Any], data_dir: Path, workers: int = 1) -> Path:
    """Return the data set of some text files, built first if need be.

    Args:
        config: ``path`` (a file, a folder, of which every file that is not hidden counts, or a
            glob pattern), ``tokenizer``, ``val_fraction``, and optionally
            ``tokenizer_revision``, ``tokenizer_files`` and ``end_token``.
        data_dir: Where it is built.
        workers: Threads that tokenize.

    Raises:
        UserError: There is no text, or a file is not UTF-8.
    """
    files = _find(config)
    fraction = config["val_fraction"]
    named = config["tokenizer"], config.get("tokenizer_revision"), config.get("end_token")
    key = [*map(_sha256, files), fraction, *tokenizers.identity(*named)]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    folder = data_dir / f"{config['name']}-{digest}"
    if not is_complete(folder):
        tokenizer = tokenizers.load(
            config["tokenizer"],
            revision=config.get("tokenizer_revision"),
            files=config.get("tokenizer_files"),
            end_token=config.get("end_token"),
            threads=workers,
        )
        cuts = {path: _cut(path, fraction) for path in files}

        def tokens(split: str) -> Iterator[np.ndarray]:
            for path, (cut, end) in cuts.items():
                part = (cut, end) if split == "val" else (0, cut)
                if part[0] < part[1]:
                    yield from tokenizer.document(_read(path, *part))

        splits = {split: tokens(split) for split in ("val", "train")}
        source = {"kind": "text", "files": len(files), "content": digest, "val_fraction": fraction}
        write(folder, config["name"], tokenizer, splits, source)
    return folder


def _find(config: Mapping[str, Any]) -> list[Path]:
    """Return the files that ``path`` means, sorted."""
    pattern = config.get("path")
    if pattern is None:
        raise UserError("data=text needs data.path=PATH: a text file, a folder or a glob pattern")
    place = Path(pattern)
    if place.is_file():
        return [place]
    if place.is_dir():
        below = ((path.relative_to(place), path) for path in place.rglob("*"))
        found = [path for short, path in below if not any(p[0] == "." for p in short.parts)]
    else:
        found = [Path(name) for name in glob.glob(str(place), recursive=True)]
    found = sorted(path for path in found if path.is_file() and path.stat().st_size)
    if not found and not place.exists() and not glob.has_magic(str(place)):
        raise UserError(
            f"data.path={pattern} does not exist: it must be a text file, a folder or a glob "
            "pattern"
        )
    if not found:
        raise UserError(f"data.path={pattern} holds no text: no file there that is not empty")
    return found


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _cut(path: Path, val_fraction: float) -> tuple[int, int]:
    """Return where a file's validation text begins and ends, in characters."""
    try:
        end = sum(map(len, _read(path)))
    except UnicodeDecodeError:
        raise UserError(_not_utf8(path)) from None
    cut = position = int(end * (1 - val_fraction))
    for block in _read(path, cut):  # to the next line, if one follows
        if line := block.find("\n") + 1:
            return (position + line if position + line < end else cut), end
        position += len(block)
    return cut, end


def _read(path: Path, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Yield a file's characters from ``start`` to ``stop``, block by block."""
    position = 0
    with path.open(encoding="utf-8-sig", newline="") as file:
        while (stop is None or position < stop) and (block := file.read(tokenizers.PIECE)):
            part = block[max(0, start - position) : None if stop is None else stop - position]
            position += len(block)
            if part:
                yield part


def _not_utf8(path: Path) -> str:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return (
                    f"{path} is not UTF-8 text: byte 0x{line[error.start]:02x} in line {number}; "
                    "name the files to read with a glob pattern, such as 'folder/**/*.txt'"
                )
    return f"{path} changed while it was being read; run again"
