"""Data sets that Hugging Face's ``datasets`` reads: hub ids, folders of parquet or jsonl.

``python -m powerstep_repro.prepare`` makes their token files; a training run only finds them.
"""

import glob
import gzip
import hashlib
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from powerstep_repro.config.paths import CONF, read_path
from powerstep_repro.data import tokenizers
from powerstep_repro.data.store import is_complete, write
from powerstep_repro.data.tokenizers import Tokenizer, commit, first_line
from powerstep_repro.errors import UserError

# Options that decide what is in a data set; the others say how it is made and read.
CONTENT = (
    *("id", "config", "revision", "data_files", "split", "val_split", "val_fraction", "val_seed"),
    *("val_documents", "streaming", "text_column", "tokenizer", "tokenizer_revision"),
    *("end_token", "max_tokens"),
)
# File names' endings, and the ids that mean local files of a format.
FORMATS = {"parquet": "parquet", "jsonl": "json", "json": "json", "csv": "csv", "txt": "text"}
SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)(.*)")
# Documents that are tokenized at once: few, because some tokenizers take 140 times their size.
BATCH = 100


def folder(config: Mapping[str, Any], data_dir: Path) -> Path:
    """Return where the data set of these options stands, or would stand.

    The name holds the options and, of local files, each one's path, size and time of change.

    Raises:
        UserError: The local files are not there.
    """
    if config.get("path"):
        return Path(config["path"])
    content = {key: config[key] for key in CONTENT}
    content["tokenizer"] = tokenizers.identity(config["tokenizer"])
    if files := local_files(config):
        stats = ((path, path.stat()) for path in files)
        content["files"] = [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return data_dir / f"{config['name']}-{digest}"


def local_files(config: Mapping[str, Any]) -> list[Path]:
    """Return the files on this machine that a data set is made of, sorted; none of a hub id's."""
    place = Path(config["id"])
    if config["data_files"] and config["id"] in {*FORMATS, *FORMATS.values()}:
        found = [Path(name) for pattern in _flat(config["data_files"]) for name in _glob(pattern)]
        if not found and "://" not in str(config["data_files"]):
            raise UserError(f"data_files={config['data_files']} matches no file")
    elif place.is_dir():
        found = [path for path in place.rglob("*") if path.is_file()]
        found = [path for path in found if path.relative_to(place).parts[0][0] != "."]
        if not found:
            raise UserError(f"id={config['id']} holds no file")
    elif config["id"].startswith((".", "/", "~")):
        raise UserError(
            f"id={config['id']} is no folder; a prepared data set whose source has gone is "
            "opened by data.path=FOLDER"
        )
    else:
        return []
    return sorted(path.resolve() for path in found)


def _flat(data_files: Any) -> list[str]:
    if isinstance(data_files, str):
        return [data_files]
    values = data_files.values() if isinstance(data_files, Mapping) else data_files
    return [pattern for value in values for pattern in _flat(value)]


def _glob(pattern: str) -> list[str]:
    return glob.glob(_literal(pattern), recursive=True)


def _literal(pattern: str) -> str:
    """Return a pattern for the files that a text means: a file's own name before a pattern."""
    path = Path(read_path(pattern))  # one of a list, which no key=value has read
    return glob.escape(str(path)) if path.exists() else str(path)


def locate(config: Mapping[str, Any], data_dir: Path) -> Path:
    """Return the folder of a prepared data set.

    Raises:
        UserError: It is not prepared; the sentence holds the command that does it.
    """
    place = folder(config, data_dir)
    if not is_complete(place):
        raise UserError(
            f"data set {config['name']} is not prepared ({place} does not hold it); prepare it "
            f"with: {command(config, data_dir)}"
        )
    return place


def command(config: Mapping[str, Any], data_dir: Path) -> str:
    """Return the command that prepares a data set, with the options that are not defaults."""
    from powerstep_repro.config import compose

    file = CONF / "data" / f"{config['name']}.yaml"
    name = config["name"] if file.is_file() else "openwebtext"
    stated = compose(["profile=paper", f"data={name}"])["data"]
    options = [
        f"{key}={'null' if value is None else value}"
        for key, value in config.items()
        if key not in ("kind", "hash") and value != stated.get(key)
    ]
    if str(data_dir) != "data":
        options.append(f"data_dir={data_dir}")
    return shlex.join(["python", "-m", "powerstep_repro.prepare", name, *options])


def prepare(config: Mapping[str, Any], data_dir: Path, workers: int = 1) -> Path:
    """Download and tokenize a data set unless it is there.

    Args:
        config: The options that ``conf/data/openwebtext.yaml`` explains.
        data_dir: Where it is built.
        workers: Processes that tokenize; threads of one process where it streams.

    Raises:
        UserError: The source, a split, the column or the tokenizer is not to be had, or a file
            cannot be read.
    """
    place = folder(config, data_dir)
    if is_complete(place):
        return place
    files = local_files(config)
    _check(config, files)
    # The tokenizer first: it is the smaller download to fail.
    tokenizer = tokenizers.load(
        config["tokenizer"],
        revision=config["tokenizer_revision"],
        files=config["tokenizer_files"],
        end_token=config["end_token"],
        threads=workers if config["streaming"] else 1,
    )
    revision = None if files else commit("dataset", config["id"], config["revision"])
    source = {key: config[key] for key in CONTENT if key != "tokenizer"}
    source = {"kind": "hub", **source, "revision": revision}
    try:
        train, val = _splits(config, revision, workers)
        tokens = {"val": val, "train": train}
        splits = {k: _tokens(data, config, tokenizer, workers) for k, data in tokens.items()}
        write(place, config["name"], tokenizer, splits, source, config["max_tokens"])
    except UserError:
        raise
    except Exception as error:  # readers of many formats and their HTTP clients
        what = _unreadable(files) or f"it cannot be prepared: {_first_cause(error)}"
        raise UserError(f"data set {config['id']}: {what}") from error
    return place


def _check(config: Mapping[str, Any], files: list[Path]) -> None:
    """Refuse empty files, and numbered shards of which some are missing."""
    for path in files:
        if _is_empty(path):
            raise UserError(f"data set {config['id']}: {path} is empty: fetch or remove it")
    if config["data_files"]:
        return  # somebody chose them
    shards: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for path in files:
        if match := SHARD.fullmatch(str(path)):
            stem, number, of, ending = match.groups()
            shards[stem, of, ending].add(int(number))
    for (stem, of, ending), numbers in shards.items():
        if missing := sorted({*range(int(of))} - numbers):
            first = f"{stem}-{missing[0]:0{len(of)}d}-of-{of}{ending}"
            raise UserError(
                f"data set {config['id']} lacks {len(missing)} of {int(of)} shards, such as "
                f"{first}: fetch them, or choose what is there with id=FORMAT data_files=PATTERN"
            )


def _is_empty(path: Path) -> bool:
    if path.stat().st_size == 0:
        return True
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return not file.read(1)
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            return pq.read_metadata(path).num_rows == 0
    except Exception:  # damaged: the reader will say how
        pass
    return False


def _splits(config: Mapping[str, Any], revision: str | None, workers: int) -> tuple[Any, Any]:
    """Return the documents to train and to validate on, as ``datasets`` has them."""
    from datasets import load_dataset

    name, place = config["id"], Path(config["id"])
    options: dict[str, Any] = {"name": config["config"], "revision": revision}
    if config["data_files"]:
        options["data_files"] = _literals(config["data_files"])
    if place.is_dir():
        name = str(place)
        if glob.has_magic(name):  # the library would take such a folder for a pattern
            endings = (path.suffix[1:] for path in local_files(config))
            name = next((FORMATS[ending] for ending in endings if ending in FORMATS), "json")
            options["data_dir"] = glob.escape(str(place.resolve()))
    if config["streaming"]:
        options["streaming"] = True
    elif workers > 1:
        options["num_proc"] = workers
    load = partial(load_dataset, name, **options)
    train = load(split=config["split"])
    if config["val_split"]:
        return train, load(split=config["val_split"])
    first = config["val_documents"]
    if config["streaming"]:
        if not first:
            raise UserError(
                "streaming=true needs val_split=NAME (a split of the data set's own) or "
                "val_documents=N (hold out the first N documents)"
            )
        return train.skip(first), train.take(first)
    if first:
        if first >= len(train):
            raise UserError(
                f"val_documents={first} leaves nothing of {len(train)} documents: it must be less"
            )
        return train.select(range(first, len(train))), train.select(range(first))
    # nanoGPT's split, and its order: both parts come shuffled by the same seed.
    parts = train.train_test_split(test_size=config["val_fraction"], seed=config["val_seed"])
    return parts["train"], parts["test"]


def _literals(data_files: Any) -> Any:
    if isinstance(data_files, str):
        return _literal(data_files)
    if isinstance(data_files, Mapping):
        return {split: _literals(files) for split, files in data_files.items()}
    return [_literals(files) for files in data_files]


def _tokens(
    data: Any, config: Mapping[str, Any], tokenizer: Tokenizer, workers: int
) -> Iterator[np.ndarray]:
    """Yield the ids of one split's documents."""
    encode = partial(_encode, tokenizer=tokenizer, column=config["text_column"], id=config["id"])
    if config["streaming"]:
        for batch in data.iter(BATCH):
            yield from encode(batch)["ids"]
        return
    from datasets import Features, Sequence, Value

    # The library keeps what it has mapped: an interrupted call goes on from there.
    mapped = data.map(
        encode,
        batched=True,
        batch_size=BATCH,
        remove_columns=data.column_names,
        features=Features({"ids": Sequence(Value(tokenizer.dtype))}),
        num_proc=min(workers, len(data)) if min(workers, len(data)) > 1 else None,
        desc="tokenize",
    )
    for table in mapped.with_format("arrow").iter(BATCH):
        yield table["ids"].combine_chunks().flatten().to_numpy()


def _encode(
    batch: Mapping[str, list], tokenizer: Tokenizer, column: str, id: str
) -> dict[str, list[np.ndarray]]:
    """Return the ids of some rows' texts; rows without one are left out."""
    if column not in batch:
        raise UserError(
            f"data set {id} has no column {column!r} (text_column); it has {', '.join(batch)}"
        )
    for value in batch[column]:
        if not isinstance(value, str | None):
            raise UserError(f"column {column!r} (text_column) holds {value!r}, which is no text")
    return {"ids": tokenizer.documents([text for text in batch[column] if text is not None])}


def _first_cause(error: BaseException) -> str:
    """Return what went wrong first; the last errors only say that something did."""
    while error.__cause__ is not None and type(error.__cause__).__name__ != "RemoteTraceback":
        error = error.__cause__
    return first_line(error)


def _unreadable(files: list[Path]) -> str | None:
    """Name the first local file that cannot be read by itself."""
    from datasets import load_dataset

    for path in files:
        ending = path.name.removesuffix(".gz").rpartition(".")[2]
        if ending not in FORMATS:
            continue
        options = {"data_files": glob.escape(str(path)), "split": "train", "streaming": True}
        try:
            for _ in load_dataset(FORMATS[ending], **options).with_format("arrow").iter(BATCH):
                pass
        except Exception as error:
            return f"{path} cannot be read: {_first_cause(error)}"
    return None
