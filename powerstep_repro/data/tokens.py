"""Ready token files as a data set.

The folder stays as it is: nothing is written there, it may be read-only, and its ``meta.json`` is
optional. Both files are read once, for their hash and their largest id; what was found lies with
links to them under ``data_dir``, and is found again as long as the files stay the same.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nanogpt.data import DTYPES
from powerstep_repro.data.store import describe, is_complete, new_folder
from powerstep_repro.errors import UserError

BLOCK_BYTES = 2**24
SPLITS = ("train", "val")
# llm.c's files begin with one of these numbers, in a header that would read as tokens.
LLMC_MAGIC = {20240520: "uint16", 20240801: "uint32"}
LLMC_HEADER_BYTES = 1024


def prepare(config: Mapping[str, Any], data_dir: Path, workers: int = 1) -> Path:
    """Return a folder with the token files and their description.

    Args:
        config: ``path`` (a folder with ``train.bin`` and ``val.bin``), ``dtype`` (where no
            ``meta.json`` states it) and ``name`` (``tokens`` shows the folder's own name).
        data_dir: Where the description is kept.
        workers: Not used.

    Raises:
        UserError: A file is missing, empty or cut, or is not what its description says.
    """
    folder = Path(config["path"]) if config.get("path") else None
    if folder is None:
        raise UserError("data=tokens needs data.path=FOLDER with train.bin and val.bin")
    if not folder.is_dir():
        raise UserError(f"data.path={folder} is not a folder")
    folder = folder.resolve()
    for path in sorted(folder.glob("*.bin")):
        _refuse_llmc(path)
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
    if not is_complete(view):
        found = _scan(folder, dtype, declared)
        meta = {"name": name, "dtype": dtype, "tokenizer": declared.get("tokenizer"), **found}
        with new_folder(view) as staging:
            for split in SPLITS:
                (staging / f"{split}.bin").symlink_to(folder / f"{split}.bin")
            describe(staging, meta, declared.get("source", {"kind": "tokens"}))
    return view


def _refuse_llmc(path: Path) -> None:
    with path.open("rb") as file:
        dtype = LLMC_MAGIC.get(int.from_bytes(file.read(4), "little"))
    if dtype is not None:
        raise UserError(
            f"{path} is a token file of llm.c, with a header of {LLMC_HEADER_BYTES} bytes before "
            f"its {dtype} tokens; cut it off, of each shard, and join them in a new folder: tail "
            f"-q -c +{LLMC_HEADER_BYTES + 1} {shlex.quote(str(path))} ... > NEW/train.bin (and "
            f"NEW/val.bin likewise), then data.path=NEW data.dtype={dtype}"
        )


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


def _scan(folder: Path, dtype: str, declared: dict) -> dict[str, Any]:
    """Return the files' tokens, digests and vocabulary, as far as declared the same."""
    found: dict[str, Any] = {}
    largest = -1
    for split in SPLITS:
        path, size = folder / f"{split}.bin", DTYPES[dtype].itemsize
        digest, tokens = hashlib.sha256(), path.stat().st_size // size
        if tokens == 0 or path.stat().st_size % size:
            raise UserError(
                f"{path} has {path.stat().st_size} bytes, not a positive multiple of the {size} "
                f"of a {dtype} token"
            )
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
                largest = max(largest, int(np.frombuffer(block, DTYPES[dtype]).max()))
        found |= {f"{split}_tokens": tokens, f"{split}_sha256": digest.hexdigest()}
    for key, value in found.items():
        if declared.get(key, value) != value:
            split, what = key.split("_")
            raise UserError(
                f"{folder / split}.bin has {what} {value} where meta.json says {declared[key]}: "
                "it is cut or not the file described"
            )
    # Without a description, the vocabulary is at least what the files use.
    vocab_size = declared.get("vocab_size") or largest + 1
    if type(vocab_size) is not int or vocab_size < 1:
        raise UserError(
            f"{folder / 'meta.json'} has vocab_size {vocab_size!r}: it must be a whole number from "
            "1 on"
        )
    if largest >= vocab_size:
        raise UserError(
            f"the token files in {folder} hold id {largest}, beyond their vocabulary of "
            f"{vocab_size}"
        )
    return {**found, "vocab_size": vocab_size}
