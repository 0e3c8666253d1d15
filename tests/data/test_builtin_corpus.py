"""The embedded corpus: always the same text, whole documents held out, built once by anyone."""

import subprocess
import sys

import numpy as np
import pytest

from powerstep_repro.data import builtin, resolve
from powerstep_repro.errors import UserError

CONFIG = {"kind": "builtin", "name": "builtin"}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("builtin")


@pytest.fixture(scope="module")
def data(data_dir):
    return resolve(CONFIG, data_dir)


def texts(tokens):
    """The documents of a split of byte tokens."""
    ends = np.flatnonzero(tokens == 256)
    assert ends[-1] == len(tokens) - 1
    parts = np.split(tokens, ends[:-1] + 1)
    return [bytes(part[part < 256].astype(np.uint8)).decode() for part in parts]


def test_it_is_the_documents_as_bytes_each_with_an_end_mark(data):
    documents = builtin.documents()
    assert sorted(texts(data.train) + texts(data.val)) == sorted(documents.values())
    assert list(documents) == sorted(documents)
    assert data.vocab_size == 257
    assert (data.name, data.meta["dtype"], data.meta["tokenizer"]) == ("builtin", "uint16", "byte")


def test_it_is_english_enough_to_train_on(data):
    assert len(data.train) > 1_000_000
    # Documents are held out whole, by a hash of their name: the share varies with the Python.
    assert 0.04 < len(data.val) / (len(data.val) + len(data.train)) < 0.15
    assert sum(text.count(" the ") for text in texts(data.val)) > 1000


def test_another_process_builds_the_same_bytes(data, tmp_path):
    code = (
        "import sys; from powerstep_repro.data import resolve;"
        f"print(resolve({CONFIG}, sys.argv[1]).hash, 'torch' in sys.modules)"
    )
    # Two at once, in one folder: both build, and the first to be done is kept.
    both = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        assert process.communicate(timeout=120)[0].split() == [data.hash, "False"]
        assert process.returncode == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_it_is_built_once(data_dir, data):
    before = {path: path.stat().st_mtime_ns for path in data.folder.iterdir()}
    assert resolve(CONFIG, data_dir).hash == data.hash
    assert {path: path.stat().st_mtime_ns for path in data.folder.iterdir()} == before


def test_a_path_that_would_not_be_read_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"data.path=/texts is not read by data=builtin"):
        resolve(CONFIG | {"path": "/texts"}, tmp_path)
    assert not any(tmp_path.iterdir())
