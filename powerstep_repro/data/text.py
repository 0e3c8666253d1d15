"""Local text files as a data set.

Each file is a document. The last ``val_fraction`` of every file, from the next line on, is held
out for validation; the rest is for training. The data set's folder is named by the files' content
and the options, so that changed files make a new one.
"""

import glob
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from powerstep_repro.data import tokenizers
from powerstep_repro.data.shards import Report, Rows, SourceError, silent
from powerstep_repro.data.store import Corpus, ensure
from powerstep_repro.errors import UserError

SHARD_FILES = 64


def prepare(
    config: Mapping[str, Any], data_dir: Path, workers: int = 1, report: Report = silent
) -> Path:
    """Return the data set of some text files, built first if need be.

    Args:
        config: ``path`` (a file, a folder, of which every file that is not hidden counts, or a
            glob pattern), ``tokenizer``, ``val_fraction``, and optionally
            ``tokenizer_revision``, ``tokenizer_files`` and ``end_token``.
        data_dir: Where it is built.
        workers: Processes that tokenize.
        report: Is told of the progress.

    Raises:
        UserError: There is no text, or a file is not UTF-8.
    """
    files = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in _find(config)}
    fraction = config["val_fraction"]
    tokenizer = config["tokenizer"], config.get("tokenizer_revision"), config.get("end_token")
    key = json.dumps([*files.values(), fraction, *tokenizers.identity(*tokenizer)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    name = config["name"]

    def corpus() -> Corpus:
        loaded = tokenizers.load(
            tokenizer[0],
            data_dir,
            revision=tokenizer[1],
            files=config.get("tokenizer_files"),
            end_token=tokenizer[2],
        )
        paths = list(files)

        def rows(part: int) -> Rows:
            def read(start: int, stop: int) -> list[str]:
                parts = (_read(path, files[path], fraction)[part] for path in paths[start:stop])
                return [text for text in parts if text]

            return Rows(len(paths), read, SHARD_FILES)

        source = {"kind": "text", "files": len(paths), "content": digest, "val_fraction": fraction}
        return Corpus(name, loaded, val=rows(1), train=rows(0), source=source)

    folder = data_dir / f"{name}-{digest}"
    ensure(folder, corpus, workers=workers, report=report)
    return folder


def _find(config: Mapping[str, Any]) -> list[Path]:
    """Return the files that ``path`` means, sorted."""
    pattern = config.get("path")
    if pattern is None:
        raise UserError("data=text needs data.path=PATH: a text file, a folder or a glob pattern")
    place = Path(pattern).expanduser()
    if place.is_file():
        return [place]
    if place.is_dir():
        below = ((path.relative_to(place), path) for path in place.rglob("*"))
        found = [path for short, path in below if not any(p[0] == "." for p in short.parts)]
    else:
        found = [Path(name) for name in glob.glob(str(place), recursive=True)]
    found = sorted(path for path in found if path.is_file() and path.stat().st_size)
    if not found and not place.exists() and not any(mark in str(place) for mark in "*?["):
        raise UserError(
            f"data.path={pattern} does not exist: it must be a text file, a folder or a glob "
            "pattern"
        )
    if not found:
        raise UserError(f"data.path={pattern} holds no text: no file there that is not empty")
    return found


def _read(path: Path, sha256: str, val_fraction: float) -> tuple[str, str]:
    """Return a file's text for training and for validation."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SourceError(f"{path} changed while it was being read; run again")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} is not UTF-8 text: byte 0x{content[error.start]:02x} at offset "
            f"{error.start}; name the files to read with a glob pattern, such as 'folder/**/*.txt'"
        ) from None
    cut = int(len(text) * (1 - val_fraction))
    line = text.find("\n", cut) + 1
    if 0 < line < len(text):
        cut = line
    return text[:cut], text[cut:]
