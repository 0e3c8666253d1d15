"""Ready token files as a data set.

The folder stays as it is: nothing is written there, it may be read-only, and its ``meta.json`` is
optional. Both files are read once, for their hash and their largest id; what was found lies with
links to them under ``data_dir``, and is found again as long as the files stay the same.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nanogpt.data import DTYPES, FORMAT, dataset_hash
from powerstep_repro.data.shards import Report, silent
from powerstep_repro.data.store import publish
from powerstep_repro.errors import UserError

BLOCK_BYTES = 2**24
SPLITS = ("train", "val")
# Of a 4-byte token the upper two bytes are below this, for vocabularies of up to a million; that
# so many 2-byte tokens have it so is no accident.
HIGH_HALF, SURELY = 16, 256


def prepare(
    config: Mapping[str, Any], data_dir: Path, workers: int = 1, report: Report = silent
) -> Path:
    """Return a folder with the token files and their description.

    Args:
        config: ``path`` (a folder with ``train.bin`` and ``val.bin``), ``dtype`` (where no
            ``meta.json`` states it) and ``name`` (``tokens`` shows the folder's own name).
        data_dir: Where the description is kept.
        workers: Not used.
        report: Not used.

    Raises:
        UserError: A file is missing, empty or cut, or is not what its description says.
    """
    folder = Path(config["path"]).expanduser() if config.get("path") else None
    if folder is None:
        raise UserError("data=tokens needs data.path=FOLDER with train.bin and val.bin")
    if not folder.is_dir():
        raise UserError(f"data.path={folder} is not a folder")
    folder = folder.resolve()
    stats = {}
    for split in SPLITS:
        path = folder / f"{split}.bin"
        if not path.is_file():
            raise UserError(
                f"data.path={folder} has no {path.name}: it must hold train.bin and val.bin"
            )
        stats[split] = [path.stat().st_size, path.stat().st_mtime_ns]
    declared = _declared(folder)
    name = config.get("name", "tokens")
    if name == "tokens":
        name = declared.get("name", folder.name)
    dtype = declared.get("dtype", config.get("dtype", "uint16"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UserError(f"the tokens' dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    key = json.dumps([str(folder), stats, declared, name, dtype], sort_keys=True)
    view = data_dir / f"tokens-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    def describe(staging: Path) -> dict:
        for split in SPLITS:
            (staging / f"{split}.bin").symlink_to(folder / f"{split}.bin")
        return _describe(folder, name, dtype, declared)

    publish(view, describe)
    return view


def _declared(folder: Path) -> dict:
    """Return what the folder's own ``meta.json`` says, or nothing."""
    path = folder / "meta.json"
    if not path.is_file():
        return {}
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(meta, dict):
        raise UserError(f"{path} holds {meta!r} where a description of token files is expected")
    return meta


def _describe(folder: Path, name: str, dtype: str, declared: dict) -> dict:
    found: dict[str, Any] = {"largest": -1}
    for split in SPLITS:
        path = folder / f"{split}.bin"
        tokens, largest, sha256, wider = _scan(path, DTYPES[dtype])
        if wider and "dtype" not in declared:
            raise UserError(
                f"{path} read as {dtype} looks like uint32: every second token is below "
                f"{HIGH_HALF}, the largest of the others {largest}; say data.dtype=uint32, or "
                "state the dtype in a meta.json beside it"
            )
        for key, value in ((f"{split}_tokens", tokens), (f"{split}_sha256", sha256)):
            if declared.get(key, value) != value:
                raise UserError(
                    f"{path} has {key.split('_')[1]} {value} where meta.json says {declared[key]}: "
                    "it is cut or not the file described"
                )
            found[key] = value
        found["largest"] = max(found["largest"], largest)
    # Without a description, the vocabulary is at least what the files use.
    vocab_size = declared.get("vocab_size") or found["largest"] + 1
    if type(vocab_size) is not int or vocab_size < 1:
        raise UserError(
            f"{folder / 'meta.json'} has vocab_size {vocab_size!r}: it must be a whole number from "
            "1 on"
        )
    if (largest := found.pop("largest")) >= vocab_size:
        raise UserError(
            f"the token files in {folder} hold id {largest}, beyond their vocabulary of "
            f"{vocab_size}"
        )
    return {
        "format": FORMAT,
        "name": name,
        "dtype": dtype,
        "vocab_size": vocab_size,
        "tokenizer": declared.get("tokenizer"),
        **found,
        "hash": dataset_hash(found["train_sha256"], found["val_sha256"], dtype),
        "source": declared.get("source", {"kind": "tokens"}),
    }


def _scan(path: Path, dtype: np.dtype) -> tuple[int, int, str, bool]:
    """Return a file's tokens, its largest id, its SHA-256, and whether its tokens look wider."""
    size, largest, digest = path.stat().st_size, -1, hashlib.sha256()
    high = 0  # the largest of the second halves, were two tokens one
    if size == 0 or size % dtype.itemsize:
        raise UserError(
            f"{path} has {size} bytes, not a positive multiple of the {dtype.itemsize} of a "
            f"{dtype.name} token"
        )
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            tokens = np.frombuffer(block, dtype)
            largest = max(largest, int(tokens.max()))
            high = max(high, int(tokens[1::2].max(initial=0)))
    tokens = size // dtype.itemsize
    wider = dtype.itemsize == 2 and tokens >= SURELY and high < HIGH_HALF <= largest
    return tokens, largest, digest.hexdigest(), wider
