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

from nanogpt.data import DTYPES, FORMAT, dataset_hash
from powerstep_repro.data.shards import Documents, Report, silent, tokenize
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
        source: Where the documents come from, in plain types. It goes into ``meta.json``, and
            shards of an interrupted build are used again only if it is the same.
        max_tokens: Keep the first so many training tokens; None keeps all.
    """

    name: str
    tokenizer: Tokenizer
    val: Documents
    train: Documents
    source: dict
    max_tokens: int | None = None


def is_complete(folder: Path) -> bool:
    """Tell whether a data set stands in ``folder``; the description is never there without it."""
    return (folder / "meta.json").is_file()


def ensure(
    folder: Path,
    corpus: Callable[[], Corpus],
    *,
    workers: int = 1,
    wait: bool = True,
    report: Report = silent,
) -> bool:
    """Build a data set unless it is there.

    Args:
        folder: The data set's final place.
        corpus: Describes it; called under the lock and only if there is something to build.
        workers: Processes that tokenize. The result does not depend on it.
        wait: Wait for another process that builds the same folder, instead of refusing.
        report: Is told of the progress.

    Returns:
        Whether it was built by this call.

    Raises:
        UserError: The corpus is empty, the folder is taken by something else or not writable, or
            another process builds it and ``wait`` is false.
    """
    if is_complete(folder):
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder, wait):
            if is_complete(folder):
                return False
            if folder.exists() and any(folder.iterdir()):
                raise UserError(
                    f"{folder} holds files but no meta.json, so it is not a data set of this "
                    "project; move it away or choose another data_dir"
                )
            _build(folder, corpus(), workers, report)
    except OSError as error:
        raise UserError(
            f"the data set {folder} cannot be written: {error.strerror or error}"
        ) from error
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


def _build(folder: Path, corpus: Corpus, workers: int, report: Report) -> None:
    if corpus.max_tokens is not None and corpus.max_tokens < 1:
        raise UserError(f"max_tokens={corpus.max_tokens} must be at least 1")
    # The shards' folder is named by all that their bytes depend on: another source or tokenizer
    # never meets them, not even from a worker that outlives its parent for a moment.
    plan = {
        "format": FORMAT,
        "source": corpus.source,
        "tokenizer": corpus.tokenizer.fingerprint,
        "shard_documents": [corpus.val.size, corpus.train.size],
    }
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
    stem = f".{folder.name}.partial-"
    partial = folder.with_name(stem + digest)
    for other in folder.parent.glob(f"{stem}*"):
        if other != partial:
            shutil.rmtree(other)
    shards = {}
    for split, documents, limit in (
        ("val", corpus.val, None),
        ("train", corpus.train, corpus.max_tokens),
    ):
        shards[split] = tokenize(
            split,
            documents,
            corpus.tokenizer,
            partial / split,
            workers=workers,
            max_tokens=limit,
            report=report,
        )
        if not shards[split]:
            raise UserError(
                f"the {'validation' if split == 'val' else 'training'} split of data set "
                f"{corpus.name} is empty: its source holds too few documents"
            )
    _publish(folder, corpus, shards)
    shutil.rmtree(partial)


def _publish(folder: Path, corpus: Corpus, shards: dict[str, list[Path]]) -> None:
    """Join the shards and give the result its final name, as the last act."""
    staging = folder.with_name(f".{folder.name}.staging")
    with suppress(FileNotFoundError):
        shutil.rmtree(staging)
    staging.mkdir()
    width = DTYPES[corpus.tokenizer.dtype].itemsize
    tokens, sha256 = {}, {}
    for split, paths in shards.items():
        limit = corpus.max_tokens * width if split == "train" and corpus.max_tokens else None
        size, sha256[split] = _join(paths, staging / f"{split}.bin", limit)
        tokens[split] = size // width
    meta = {
        "format": FORMAT,
        "name": corpus.name,
        "dtype": corpus.tokenizer.dtype,
        "vocab_size": corpus.tokenizer.vocab_size,
        "tokenizer": corpus.tokenizer.name,
        "train_tokens": tokens["train"],
        "val_tokens": tokens["val"],
        "train_sha256": sha256["train"],
        "val_sha256": sha256["val"],
        "hash": dataset_hash(sha256["train"], sha256["val"], corpus.tokenizer.dtype),
        "source": corpus.source,
    }
    publish_meta(staging, folder, meta)


def publish_meta(staging: Path, folder: Path, meta: dict) -> None:
    """Write the description into ``staging`` and rename the whole to ``folder``."""
    with (staging / "meta.json").open("w", encoding="utf-8") as file:
        file.write(json.dumps(meta, indent=1, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(staging)
    staging.rename(folder)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
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
        out.flush()
        os.fsync(out.fileno())
    return size, digest.hexdigest()
