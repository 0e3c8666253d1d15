"""Ready token files: checked once, described beside nobody's files, refused with a sentence."""

import json
import os
import re
import shlex
import subprocess

import numpy as np
import pytest

from nanogpt.data import dataset_hash
from powerstep_repro.data import resolve
from powerstep_repro.errors import UserError


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "english"
    folder.mkdir()
    np.arange(300, dtype="<u2").tofile(folder / "train.bin")
    np.arange(50, dtype="<u2").tofile(folder / "val.bin")
    return folder


def config(folder, **options):
    return {"kind": "tokens", "name": "tokens", "path": str(folder), "dtype": "uint16", **options}


def test_two_files_are_enough(folder, tmp_path):
    before = sorted(os.listdir(folder))
    data = resolve(config(folder), tmp_path / "data")
    assert data.train.tolist() == list(range(300))
    assert data.val.tolist() == list(range(50))
    assert data.vocab_size == 300  # at least what the files use
    assert data.name == "english"
    meta = data.meta
    assert data.hash == dataset_hash(meta["train_sha256"], meta["val_sha256"], "uint16")
    assert sorted(os.listdir(folder)) == before


def test_a_name_for_the_figures_does_not_change_the_hash(folder, tmp_path):
    named = resolve(config(folder, name="english-mix"), tmp_path / "data")
    assert named.name == "english-mix"
    assert named.hash == resolve(config(folder), tmp_path / "data").hash


def test_files_are_read_again_only_when_they_change(folder, tmp_path):
    first = resolve(config(folder), tmp_path / "data")
    stamp = (first.folder / "meta.json").stat().st_mtime_ns
    assert (
        resolve(config(folder), tmp_path / "data").folder / "meta.json"
    ).stat().st_mtime_ns == stamp
    np.arange(300, dtype="<u2")[::-1].tofile(folder / "train.bin")  # the same size
    os.utime(folder / "train.bin", ns=(1, stamp + 1))
    assert resolve(config(folder), tmp_path / "data").hash != first.hash


def test_wide_ids(folder, tmp_path):
    for split in ("train", "val"):
        np.array([1, 151_000], dtype="<u4").tofile(folder / f"{split}.bin")
    data = resolve(config(folder, dtype="uint32"), tmp_path / "data")
    assert data.vocab_size == 151_001
    assert data.train.tolist() == [1, 151_000]


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, "uint16"), (20240801, "uint32")])
def test_llmc_files_are_refused_with_advice_that_gives_their_tokens(tmp_path, magic, dtype):
    """Their header of 256 numbers would be trained on as tokens."""
    folder = tmp_path / "it's llm.c"
    folder.mkdir()
    tokens = np.random.default_rng(0).integers(0, 50_000, 600).astype(dtype)
    for at, name in enumerate(("edu_train_000001", "edu_train_000002", "edu_val_000001")):
        header = np.zeros(256, "<i4")
        header[:3] = magic, 1, 200
        part = tokens[200 * at : 200 * (at + 1)]
        (folder / f"{name}.bin").write_bytes(header.tobytes() + part.tobytes())
    with pytest.raises(UserError, match=r"is a token file of llm\.c") as refused:
        resolve(config(folder), tmp_path / "data")
    told = re.search(r"tail -q .*?( \.\.\.) > NEW/train.bin", str(refused.value))[0]
    (tmp_path / "NEW").mkdir()
    more = shlex.quote(str(folder / "edu_train_000002.bin"))
    subprocess.run(told.replace("...", more), shell=True, cwd=tmp_path, check=True)
    (tmp_path / "NEW" / "val.bin").write_bytes(tokens[400:].tobytes())
    assert f"data.dtype={dtype}" in str(refused.value)
    data = resolve(config(tmp_path / "NEW", dtype=dtype), tmp_path / "data")
    assert data.train.tolist() == tokens[:400].tolist()


def describe(folder, **changes):
    (folder / "meta.json").write_text(json.dumps({"name": "mix", "dtype": "uint16", **changes}))


def test_the_folders_own_description_counts(folder, tmp_path):
    describe(folder, vocab_size=50257, tokenizer="gpt2", train_tokens=300)
    data = resolve(config(folder, dtype="uint32"), tmp_path / "data")
    assert (data.name, data.vocab_size, data.meta["tokenizer"]) == ("mix", 50257, "gpt2")
    assert data.train.dtype == np.uint16


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab_size": -5}, "vocab_size -5: it must be a whole number from 1 on"),
        ({"vocab_size": 257}, "hold id 299, beyond their vocabulary of 257"),
        ({"train_tokens": 301}, "has tokens 300 where meta.json says 301"),
        ({"val_sha256": "0" * 64}, "val.bin has sha256 .* where meta.json says 000"),
        ({"dtype": "float32"}, "dtype 'float32' is not one of uint16, uint32"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(folder, tmp_path, changes, sentence):
    describe(folder, **changes)
    with pytest.raises(UserError, match=sentence):
        resolve(config(folder), tmp_path / "data")


def test_bad_files_end_in_a_sentence(folder, tmp_path):
    def refused(sentence, **options):
        with pytest.raises(UserError, match=sentence):
            resolve(config(folder, **options), tmp_path / "data")

    refused("needs data.path", path=None)
    refused("data.path=/no/such/folder is not a folder", path="/no/such/folder")
    (folder / "train.bin").write_bytes(b"odd")
    refused("train.bin has 3 bytes, not a positive multiple of the 2")
    (folder / "train.bin").write_bytes(b"")
    refused("train.bin has 0 bytes")
    (folder / "val.bin").unlink()
    refused("has no val.bin: it must hold train.bin and val.bin")
    (folder / "meta.json").write_text("{cut")
    (folder / "val.bin").write_bytes(b"ab")
    refused("meta.json cannot be read")
    (folder / "meta.json").write_text("[1]")
    refused("meta.json holds")
