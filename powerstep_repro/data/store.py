"""Writing a data set so that it is either whole or not there.

A data set's folder appears by one rename, after its files and their description have reached the
disk. Until then the work lies in hidden folders beside it, shard by shard, so that an interrupted
build goes on where it stopped. Readers look at the final name alone.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from nanogpt.data import DTYPES, FORMAT, dataset_hash
from powerstep_repro.data import tokenizers
from powerstep_repro.data.shards import Documents, Pool, Report, SourceError, silent, tokenize
from powerstep_repro.data.tokenizers import Tokenizer
from powerstep_repro.errors import UserError

COPY_BYTES = 2**24


@dataclass(frozen=True)
class Corpus:
    """What a data set is made of.

    Attributes:
        name: The name that figures show.
        tokenizer: Turns documents into ids.
        val: The documents held out for validation.
        train: The documents to train on.
        source: Where the documents come from, in plain types; goes into ``meta.json``.
        fingerprint: Changes with the source's content, as far as that can change under one
            name. Shards of an interrupted build are used again only if it is the same.
        max_tokens: Keep the first so many training tokens; None keeps all.
    """

    name: str
    tokenizer: Tokenizer
    val: Documents
    train: Documents
    source: dict
    fingerprint: str = ""
    max_tokens: int | None = None


def is_complete(folder: Path) -> bool:
    """Tell whether a data set stands in ``folder``; the description is never there without it."""
    return (folder / "meta.json").is_file()


def publish(folder: Path, fill: Callable[[Path], dict], *, wait: bool = True) -> bool:
    """Make a data set unless it is there; it appears by one rename, as the last act.

    Args:
        folder: The data set's final place.
        fill: Writes the token files into the empty folder it is given and returns the content of
            ``meta.json``; called under the lock.
        wait: Wait for another process that makes the same folder, instead of refusing.

    Returns:
        Whether it was made by this call.

    Raises:
        UserError: The folder is taken by something else or not writable, or another process makes
            it and ``wait`` is false.
    """
    if is_complete(folder):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder, wait):
            if is_complete(folder):
                return False
            if folder.exists():
                raise UserError(
                    f"{folder} exists but has no meta.json, so it is not a data set of this "
                    "project; move it away or choose another data_dir"
                )
            staging = folder.with_name(f".{folder.name}.staging")
            with suppress(FileNotFoundError):
                shutil.rmtree(staging)
            staging.mkdir()
            try:
                meta = json.dumps(fill(staging), indent=1, ensure_ascii=False) + "\n"
                with (staging / "meta.json").open("wb") as file:
                    file.write(meta.encode())
                    _sync(file)
                _sync_folder(staging)
                staging.rename(folder)
                _sync_folder(folder.parent)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise UserError(f"the data set {folder} cannot be made: {error}") from error
    return True


@contextmanager
def _exclusive(folder: Path, wait: bool) -> Iterator[None]:
    """Hold the lock of one data set; the system releases it however the process ends."""
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is preparing {folder}") from None
        yield


def ensure(
    folder: Path,
    corpus: Callable[[], Corpus],
    *,
    workers: int = 1,
    wait: bool = True,
    report: Report = silent,
) -> bool:
    """Tokenize a corpus into a data set unless it is there.

    An interrupted call leaves its finished shards to the next, a refused one does not.

    Args:
        folder: The data set's final place.
        corpus: Describes it; called only if there is something to do.
        workers: Processes that tokenize. The result does not depend on it.
        wait: Wait for another process that builds the same folder, instead of refusing.
        report: Is told of the progress.

    Returns:
        Whether it was built by this call.

    Raises:
        UserError: The corpus is empty, or as for :func:`publish`.
    """

    def fill(staging: Path) -> dict:
        try:
            return _tokenized(folder, staging, corpus(), workers, report)
        except SourceError:
            _remove_shards(folder)
            raise

    built = publish(folder, fill, wait=wait)
    _remove_shards(folder)
    return built


def _remove_shards(folder: Path) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _tokenized(folder: Path, staging: Path, corpus: Corpus, workers: int, report: Report) -> dict:
    """Write a corpus's token files into ``staging``; return their description."""
    if corpus.max_tokens is not None and corpus.max_tokens < 1:
        raise UserError(f"max_tokens={corpus.max_tokens} must be at least 1")
    # The shards' folder is named by all that their bytes depend on: another source or tokenizer
    # never meets them, not even from a worker that outlives its parent for a moment.
    plan = json.dumps(
        [
            FORMAT,
            corpus.source,
            corpus.fingerprint,
            corpus.tokenizer.fingerprint,
            corpus.val.size,
            corpus.train.size,
        ],
        sort_keys=True,
    )
    stem = f".{folder.name}.partial-"
    partial = folder.with_name(stem + hashlib.sha256(plan.encode()).hexdigest()[:12])
    for other in folder.parent.glob(f"{stem}*"):
        if other != partial:
            shutil.rmtree(other)
    dtype = tokenizers.dtype(corpus.tokenizer)
    width = DTYPES[dtype].itemsize
    meta = {
        "format": FORMAT,
        "name": corpus.name,
        "dtype": dtype,
        "vocab_size": corpus.tokenizer.vocab_size,
        "tokenizer": corpus.tokenizer.name,
    }
    with Pool(workers, corpus.tokenizer) as pool:
        for split, documents, max_tokens in (
            ("val", corpus.val, None),
            ("train", corpus.train, corpus.max_tokens),
        ):
            shards = tokenize(
                split,
                documents,
                corpus.tokenizer,
                partial / split,
                pool,
                max_tokens=max_tokens,
                report=report,
            )
            limit = None if max_tokens is None else max_tokens * width
            size, meta[f"{split}_sha256"] = _join(shards, staging / f"{split}.bin", limit)
            meta[f"{split}_tokens"] = size // width
            if size == 0:
                raise SourceError(
                    f"the {'validation' if split == 'val' else 'training'} split of data set "
                    f"{corpus.name} is empty: its source holds too little text"
                )
    meta["hash"] = dataset_hash(meta["train_sha256"], meta["val_sha256"], dtype)
    return {**meta, "source": corpus.source}


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _join(paths: list[Path], target: Path, limit: int | None) -> tuple[int, str]:
    """Concatenate files up to ``limit`` bytes; return the size and the SHA-256 of the result."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as out:
        for path in paths:
            with path.open("rb") as shard:
                while block := shard.read(COPY_BYTES):
                    block = block if limit is None else block[: limit - size]
                    out.write(block)
                    digest.update(block)
                    size += len(block)
        _sync(out)
    return size, digest.hexdigest()
