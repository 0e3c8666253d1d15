"""Writing a data set so that it is either whole or not there.

The token files are written in a hidden folder beside the final one, which appears by one rename as
the last act. Two processes that build the same set do so side by side, and the first to be done is
kept: they hold no lock, and what they write is the same.
"""

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nanogpt.data import DTYPES, FORMAT, dataset_hash
from powerstep_repro.data.tokenizers import Tokenizer
from powerstep_repro.errors import UserError

REPORT_INTERVAL_S = 10.0


def is_complete(folder: Path) -> bool:
    """Tell whether a data set stands in ``folder``; the description is never there without it."""
    return (folder / "meta.json").is_file()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder to fill; at the end of the block it gets its final name.

    Args:
        folder: The final name.

    Raises:
        UserError: It is taken by something that is no data set, or cannot be written.
    """
    if folder.exists() and not is_complete(folder):
        raise UserError(
            f"{folder} exists but has no meta.json, so it is not a data set of this project; move "
            "it away or choose another data_dir"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            staging = Path(scratch, "new")  # inside, so that it has the usual permissions
            staging.mkdir()
            yield staging
            try:
                staging.rename(folder)
            except OSError:
                if not is_complete(folder):  # else another process was first
                    raise
    except OSError as error:
        raise UserError(f"the data set {folder} cannot be made: {error}") from error


def describe(folder: Path, meta: dict, source: dict) -> None:
    """Write ``meta.json``.

    Args:
        folder: Where the token files are.
        meta: ``name``, ``dtype``, ``vocab_size``, ``tokenizer``, and each split's ``_tokens`` and
            ``_sha256``.
        source: Where the documents come from, in plain types.
    """
    digest = dataset_hash(meta["train_sha256"], meta["val_sha256"], meta["dtype"])
    meta = {"format": FORMAT, **meta, "hash": digest, "source": source}
    text = json.dumps(meta, indent=1, ensure_ascii=False) + "\n"
    (folder / "meta.json").write_text(text, encoding="utf-8")


def write(
    folder: Path,
    name: str,
    tokenizer: Tokenizer,
    splits: Mapping[str, Iterable[np.ndarray]],
    source: dict,
    max_tokens: int | None = None,
) -> None:
    """Write a data set from arrays of token ids.

    Args:
        folder: The final place.
        name: The name that figures show.
        tokenizer: What made the ids.
        splits: The ids of ``val`` and ``train``, in pieces of any length; read one after the
            other, and never held whole.
        source: Where the documents come from, in plain types.
        max_tokens: Keep the first so many training tokens; None keeps all.

    Raises:
        UserError: A split is empty, or the folder cannot be written.
    """
    meta = {
        "name": name,
        "dtype": tokenizer.dtype,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer": tokenizer.name,
        "tokenizer_hash": tokenizer.hash,
    }
    with new_folder(folder) as staging:
        for split, pieces in splits.items():
            limit = max_tokens if split == "train" else None
            path, dtype = staging / f"{split}.bin", DTYPES[tokenizer.dtype]
            tokens, digest = _write_split(path, pieces, dtype, limit)
            if tokens == 0:
                raise UserError(
                    f"the {'validation' if split == 'val' else 'training'} split of data set "
                    f"{name} is empty: its source holds too little text"
                )
            meta |= {f"{split}_tokens": tokens, f"{split}_sha256": digest}
        describe(staging, meta, source)


def _write_split(
    path: Path, pieces: Iterable[np.ndarray], dtype: np.dtype, limit: int | None
) -> tuple[int, str]:
    """Write one file; return its number of tokens and its SHA-256."""
    tokens, digest, reported = 0, hashlib.sha256(), time.monotonic()
    file = path.open("wb")
    with file:
        for ids in pieces:
            content = ids[: None if limit is None else limit - tokens].astype(dtype).tobytes()
            try:
                file.write(content)
            except OSError as error:  # named here: the pieces' source may fail by the same kind
                raise UserError(f"{path} cannot be written: {error}") from error
            digest.update(content)
            tokens += len(content) // dtype.itemsize
            if tokens == limit:
                break
            if time.monotonic() - reported >= REPORT_INTERVAL_S:
                reported = time.monotonic()
                of = "" if limit is None else f" of {limit:,}"
                print(f"{path.stem}: {tokens:,}{of} tokens", file=sys.stderr, flush=True)
        file.flush()
        os.fsync(file.fileno())  # the name must not come to the disk before the content
    return tokens, digest.hexdigest()
