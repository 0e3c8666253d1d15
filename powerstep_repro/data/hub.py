"""Data sets read through Hugging Face's ``datasets``: hub ids, local parquet and jsonl.

They are prepared by ``python -m powerstep_repro.prepare`` and only found here by a training run.
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

from powerstep_repro.config.paths import CONF
from powerstep_repro.data import tokenizers
from powerstep_repro.data.remote import commit, first_line
from powerstep_repro.data.shards import Documents, Report, Rows, SourceError, silent
from powerstep_repro.data.store import Corpus, ensure, is_complete
from powerstep_repro.errors import UserError

# Options that decide how a data set is made, not what is in it.
NOT_CONTENT = ("kind", "name", "path", "hash", "workers", "shard_documents", "tokenizer_files")


def folder(config: Mapping[str, Any], data_dir: Path) -> Path:
    """Return where the data set of these options stands, or would stand."""
    if config.get("path"):
        return Path(config["path"]).expanduser()
    content = {key: value for key, value in config.items() if key not in NOT_CONTENT}
    content["tokenizer"] = tokenizers.identity(config["tokenizer"])
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return data_dir / f"{config['name']}-{digest}"


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
    from omegaconf import OmegaConf

    file = CONF / "data" / f"{config['name']}.yaml"
    name = config["name"] if file.is_file() else "openwebtext"
    stated = OmegaConf.to_container(OmegaConf.load(CONF / "data" / f"{name}.yaml"), resolve=False)
    options = [
        f"{key}={'null' if value is None else value}"
        for key, value in config.items()
        if key not in ("kind", "hash") and value != stated.get(key)
    ]
    if str(data_dir) != "data":
        options.append(f"data_dir={data_dir}")
    return shlex.join(["python", "-m", "powerstep_repro.prepare", name, *options])


def prepare(
    config: Mapping[str, Any], data_dir: Path, workers: int = 1, report: Report = silent
) -> Path:
    """Download and tokenize a data set unless it is there.

    Args:
        config: The options that ``conf/data/openwebtext.yaml`` explains.
        data_dir: Where it is built.
        workers: Processes that tokenize.
        report: Is told of the progress.

    Raises:
        UserError: The source, a split, the column or the tokenizer is not to be had, or another
            process prepares the same.
    """
    place = folder(config, data_dir)
    ensure(
        place,
        lambda: _corpus(config, data_dir),
        workers=workers,
        wait=False,
        report=report,
    )
    return place


def _corpus(config: Mapping[str, Any], cache: Path) -> Corpus:
    # The tokenizer first: it is the smaller download to fail.
    tokenizer = tokenizers.load(
        config["tokenizer"],
        cache,
        revision=config["tokenizer_revision"],
        files=config["tokenizer_files"],
        end_token=config["end_token"],
    )
    local = config["data_files"] or Path(config["id"]).expanduser().is_dir()
    revision = None if local else commit("dataset", config["id"], config["revision"])
    with _one_sentence(config, "found"):
        from datasets import load_dataset_builder

        builder = load_dataset_builder(
            str(Path(config["id"]).expanduser()) if local else config["id"],
            config["config"],
            data_files=config["data_files"],
            revision=revision,
        )
        files = {
            str(split): [[str(name) for name in names], names.origin_metadata]
            for split, names in (builder.config.data_files or {}).items()
        }
        if not any(names for names, _ in files.values()) and local:
            raise UserError(f"data_files={config['data_files']} matches no file")
        val, train = (_streams if config["streaming"] else _tables)(builder, config)
    source = {key: value for key, value in config.items() if key not in NOT_CONTENT}
    return Corpus(
        config["name"],
        tokenizer,
        val,
        train,
        source={"kind": "hub", **source, "revision": revision},
        fingerprint=json.dumps([builder.hash, files]),
        max_tokens=config["max_tokens"],
    )


def _tables(builder: Any, config: Mapping[str, Any]) -> tuple[Documents, Documents]:
    """Return the validation and training documents of a data set that is downloaded whole."""
    # By one process: a pool that datasets forks inherits this command's signal handler, and its end
    # can wait for ever for a worker that takes the pool's own SIGTERM for an interruption.
    builder.download_and_prepare()
    train = builder.as_dataset(split=config["split"])
    if config["val_split"]:
        val = builder.as_dataset(split=config["val_split"])
    elif config["val_documents"]:
        first = config["val_documents"]
        if first >= len(train):
            raise UserError(
                f"val_documents={first} leaves nothing of {len(train)} documents: it must be less"
            )
        val, train = train.select(range(first)), train.select(range(first, len(train)))
    else:
        # nanoGPT's split, and its order: both parts come shuffled by the same seed.
        parts = train.train_test_split(test_size=config["val_fraction"], seed=config["val_seed"])
        val, train = parts["test"], parts["train"]

    def rows(table: Any) -> Rows:
        column = _column(table.column_names, config)
        size = config["shard_documents"]

        def read(start: int, stop: int) -> list[str]:
            with _one_sentence(config, "read"):
                return _texts(table[start:stop][column], column)

        return Rows(len(table), read, size)

    return rows(val), rows(train)


def _streams(builder: Any, config: Mapping[str, Any]) -> tuple[Documents, Documents]:
    """Return the validation and training documents of a data set that is read as it comes."""
    held_out = None if config["val_split"] else config["val_documents"]
    if not config["val_split"] and not held_out:
        raise UserError(
            "streaming=true needs val_split=NAME (a split of the data set's own) or "
            "val_documents=N (hold out the first N documents)"
        )
    val = builder.as_streaming_dataset(split=config["val_split"] or config["split"])
    train = builder.as_streaming_dataset(split=config["split"])
    return Stream(val, config, 0, held_out), Stream(train, config, held_out or 0, None)


class Stream:
    """Documents that can only be read in order.

    After each shard the reader's position is kept beside it, so that a later run goes on there
    instead of downloading everything before it again.

    Args:
        dataset: A ``datasets.IterableDataset``.
        config: The data set's options.
        start: Documents to leave out at the beginning.
        stop: The document to stop before; None reads to the end.
    """

    total = None

    def __init__(self, dataset: Any, config: Mapping[str, Any], start: int, stop: int | None):
        self.dataset, self.config, self.start, self.stop = dataset, config, start, stop
        self.size = config["shard_documents"]

    def shards(
        self, finished: Callable[[int], bool], scratch: Path
    ) -> Iterator[tuple[int, list[str] | None]]:
        """See :class:`powerstep_repro.data.shards.Documents`."""
        first = next(shard for shard in count() if not finished(shard))
        for shard in range(first):
            yield shard, None
        skipped = self.start + first * self.size
        position = scratch / f"{first - 1:07d}.position.json"
        if position.is_file():
            self.dataset.load_state_dict(json.loads(position.read_text()))
            rows = iter(self.dataset)
        else:
            rows = islice(self.dataset, skipped, None)
        if self.stop is not None:
            rows = islice(rows, max(0, self.stop - skipped))
        for shard in count(first):
            with _one_sentence(self.config, "read"):
                batch = list(islice(rows, self.size))
                if batch:
                    column = _column(list(batch[0]), self.config)
                    texts = _texts([row[column] for row in batch], column)
            if not batch:
                return
            position = scratch / f"{shard:07d}.position.json"
            temporary = position.with_suffix(".tmp")
            temporary.write_text(json.dumps(self.dataset.state_dict()))
            temporary.replace(position)
            yield shard, None if finished(shard) else texts


def _column(names: list[str], config: Mapping[str, Any]) -> str:
    if config["text_column"] not in names:
        raise SourceError(
            f"data set {config['id']} has no column {config['text_column']!r} (text_column); "
            f"it has {', '.join(names)}"
        )
    return config["text_column"]


def _texts(values: list[Any], column: str) -> list[str]:
    """Return a column's texts; rows without one are left out."""
    for value in values:
        if not isinstance(value, str | None):
            raise SourceError(f"column {column!r} (text_column) holds {value!r}, which is no text")
    return [value for value in values if value is not None]


@contextmanager
def _one_sentence(config: Mapping[str, Any], deed: str) -> Iterator[None]:
    """Turn whatever the reader raises into a sentence that names the data set."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # readers of many formats and their HTTP clients
        raise UserError(
            f"data set {config['id']!r} cannot be {deed}: {first_line(error)}"
        ) from error
