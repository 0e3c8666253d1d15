"""Data sets through the real ``datasets`` loader, from small local parquet and jsonl files."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from powerstep_repro.config import compose
from powerstep_repro.data import resolve
from powerstep_repro.errors import UserError


def encode(documents):
    """Byte tokens of some documents, by hand."""
    return [token for text in documents for token in [*text.encode(), 256]]


@pytest.fixture(scope="session")
def parquet(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("parquet")
    third = len(documents) // 3
    for number, part in enumerate((documents[:third], documents[third:])):
        table = pa.table({"text": part, "other": list(range(len(part)))})
        pq.write_table(table, folder / f"train-{number:05d}.parquet", row_group_size=16)
    pq.write_table(pa.table({"text": ["kept out", "too"]}), folder / "validation-0.parquet")
    return folder


@pytest.fixture(scope="session")
def jsonl(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("jsonl")
    with (folder / "train.jsonl").open("w") as file:
        for text in documents:
            file.write(json.dumps({"body": text}) + "\n")
    return folder


def test_the_split_is_nanogpts(built, tmp_path, parquet, documents):
    data = built(tmp_path, "openwebtext", f"id={parquet}", "tokenizer=byte", "val_fraction=0.05")
    # nanoGPT shuffles by numpy's generator, seed 2357, and takes validation from the front.
    order = np.random.default_rng(2357).permutation(len(documents))
    held_out = math.ceil(0.05 * len(documents))
    assert data.val.tolist() == encode(documents[i] for i in order[:held_out])
    assert data.train.tolist() == encode(documents[i] for i in order[held_out:])
    assert data.name == "openwebtext"


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_any_number_of_workers_gives_the_same_bytes(built, tmp_path, parquet, streaming):
    options = [f"id={parquet}", f"streaming={streaming}", "val_documents=9", "shard_documents=16"]
    several = built(tmp_path / "3", "openwebtext", *options, "workers=3")
    one = built(tmp_path / "1", "openwebtext", *options, "workers=1", "shard_documents=7")
    for name in ("train.bin", "val.bin", "meta.json"):
        assert (several.folder / name).read_bytes() == (one.folder / name).read_bytes()
    assert one.meta["tokenizer"] == "gpt2"
    assert {path.name[0] for path in (tmp_path / "3").iterdir() if path != several.folder} == {"."}
    assert not list((tmp_path / "3").glob(".*partial*"))


def test_streaming_keeps_the_sources_order(built, tmp_path, jsonl, documents):
    options = ["name=mine", "id=json", f"data_files={jsonl}/*.jsonl", "text_column=body"]
    options += ["streaming=true", "val_documents=10", "tokenizer=byte", "shard_documents=32"]
    data = built(tmp_path, "openwebtext", *options)
    assert data.val.tolist() == encode(documents[:10])
    assert data.train.tolist() == encode(documents[10:])
    assert data.name == "mine"


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_split_of_its_own_and_a_limit(built, tmp_path, parquet, documents, streaming):
    options = [f"id={parquet}", "config=null", "tokenizer=byte", f"streaming={streaming}"]
    data = built(tmp_path, "c4", *options, "max_tokens=1000", "shard_documents=8", "workers=1")
    assert data.val.tolist() == encode(["kept out", "too"])
    assert data.train.tolist() == encode(documents)[:1000]


def test_a_large_vocabulary_goes_to_wide_files(built, tmp_path, jsonl, documents):
    words = {f"w{n}": n for n in range(70_000)} | {"<eos>": 70_000, "memory": 70_001}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    options = [f"id={jsonl}", "text_column=body", f"tokenizer={folder}", "val_documents=20"]
    data = built(tmp_path / "data", "openwebtext", *options)
    assert data.train.dtype == np.uint32
    assert data.vocab_size == 70_002
    assert np.count_nonzero(data.train == 70_000) == len(documents) - 20
    assert data.train.max() == 70_001


def test_rows_without_a_text_are_left_out(built, tmp_path):
    with (tmp_path / "rows.jsonl").open("w") as file:
        for text in ("one", None, "two", "three", None, "four"):
            file.write(json.dumps({"text": text}) + "\n")
    options = ["id=json", f"data_files={tmp_path}/rows.jsonl", "val_documents=2", "tokenizer=byte"]
    data = built(tmp_path / "data", "openwebtext", *options)
    assert data.val.tolist() == encode(["one"])
    assert data.train.tolist() == encode(["two", "three", "four"])


def test_training_finds_what_its_own_sentence_tells_to_prepare(command, tmp_path, jsonl):
    overrides = ["data=openwebtext", f"data.id={jsonl}", "data.text_column=body"]
    overrides += ["data.tokenizer=byte", "data.val_fraction=0.1", f"data_dir={tmp_path / 'a b'}"]
    config = compose(overrides)
    with pytest.raises(UserError, match="is not prepared") as refused:
        resolve(config["data"], config["data_dir"])
    told = shlex.split(str(refused.value).partition("with: ")[2])
    assert told[:3] == ["python", "-m", "powerstep_repro.prepare"]
    assert command(*told[3:])[0] == 0
    assert resolve(config["data"], config["data_dir"]).vocab_size == 257
    # And once more: nothing to do.
    assert command(*told[3:])[0] == 0


def test_a_place_of_its_own(command, tmp_path, jsonl):
    options = [f"id={jsonl}", "text_column=body", "tokenizer=byte", f"path={tmp_path}/mine"]
    assert command("openwebtext", *options, "val_fraction=0.1")[0] == 0
    # Found by its place alone, whatever else the config says.
    config = compose(["data=openwebtext", f"data.path={tmp_path}/mine"])
    assert resolve(config["data"], tmp_path).folder == tmp_path / "mine"
    assert resolve(config["data"], tmp_path).vocab_size == 257


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["text_column=body"], "has no column 'body'"),
        (["text_column=other"], "holds .* which is no text"),
        (["split=elsewhere"], 'Unknown split "elsewhere"'),
        (["streaming=true", "val_documents=null"], "streaming=true needs val_split=NAME"),
        (
            ["val_documents=100000"],
            "val_documents=100000 leaves nothing of 203 documents: it must be",
        ),
        (["workers=0"], "data.workers must be a whole number from 1"),
        (["max_tokens=0"], "data.max_tokens must be a whole number from 1"),
        (["id=parquet", "data_files=/no/such/*.parquet"], "matches no file"),
        (["id=/no/such/folder"], "'/no/such/folder' cannot be found"),
        (["id=nobody/nothing"], "'nobody/nothing' cannot be found.*Hub"),
        (["tokenizer=nobody/nothing"], "tokenizer 'nobody/nothing' is not to be had"),
        (["colunm=x"], "unknown key 'colunm'"),
    ],
)
def test_bad_options_end_in_a_sentence_and_leave_nothing(
    command, tmp_path, parquet, arguments, sentence
):
    base = [f"id={parquet}", "tokenizer=byte", "val_documents=10", f"data_dir={tmp_path}"]
    code, _ = command("openwebtext", *base, *arguments)
    assert isinstance(code, str)
    assert "\n" not in code
    assert re.search(sentence, code)
    assert not [path for path in tmp_path.iterdir() if path.name[0] != "."]


def test_a_forgotten_name_is_said_to_be_missing(command, tmp_path):
    code, _ = command(f"data_dir={tmp_path}", "workers=1")
    assert f"name of the data set is missing: before 'data_dir={tmp_path}' write one of" in code
    assert "builtin, c4, openwebtext, text, tokens" in code


def test_c4_takes_the_models_own_tokenizer(command, tmp_path):
    code, _ = command("c4", "model=deepseek_v2_lite", f"data_dir={tmp_path}")
    assert "tokenizer 'deepseek-ai/DeepSeek-V2-Lite' is not to be had" in code


def test_without_a_network_it_says_so_within_seconds(offline, tmp_path):
    # A hub that refuses connections; its own clients would try for 23 seconds.
    environment = {**offline, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    environment["no_proxy"] = "127.0.0.1"
    start = time.process_time(), time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "powerstep_repro.prepare", "openwebtext", f"data_dir={tmp_path}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: dataset 'dylanebert/openwebtext' cannot be reached")
    assert ended.stderr.count("\n") == 1
    assert time.monotonic() - start[1] < 15


def test_help_tells_what_a_newcomer_needs():
    ended = subprocess.run(
        [sys.executable, "-m", "powerstep_repro.prepare", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert ended.returncode == 0
    for word in ("openwebtext", "c4", "GB", "workers", "data_dir", "examples:", "Exit code"):
        assert word in ended.stdout
