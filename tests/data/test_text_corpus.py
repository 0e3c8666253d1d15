"""Local text: which files count, where they are cut, and that changed files are seen."""

import subprocess
import sys

import numpy as np
import pytest

from powerstep_repro.data import resolve
from powerstep_repro.errors import UserError


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "b.md").write_text("".join(f"line {n} of b\n" for n in range(40)))
    (folder / "sub" / "a.py").write_text("x = 'é'\n" * 30)
    (folder / "empty.txt").write_text("")
    (folder / ".git" / "config").write_text("hidden")
    return folder


def config(path, **options):
    return {
        "kind": "text",
        "name": "text",
        "path": str(path),
        "tokenizer": "byte",
        "val_fraction": 0.1,
        **options,
    }


def words(tokens):
    return [
        bytes(part[:-1].astype(np.uint8)).decode()
        for part in np.split(tokens, np.flatnonzero(tokens == 256) + 1)[:-1]
    ]


def test_a_folder_is_every_file_that_is_not_hidden(corpus, tmp_path):
    data = resolve(config(corpus), tmp_path / "data")
    b, a = (corpus / "b.md").read_text(), (corpus / "sub" / "a.py").read_text()
    train, val = words(data.train), words(data.val)
    assert [head + tail for head, tail in zip(train, val, strict=True)] == [b, a]
    assert all(part.endswith("\n") for part in train)  # cut at a line's end
    assert 0.05 < len(data.val) / (len(data.val) + len(data.train)) < 0.12


def test_a_file_and_a_glob(corpus, tmp_path):
    one = resolve(config(corpus / "b.md"), tmp_path / "data")
    several = resolve(config(corpus / "*.md"), tmp_path / "data")
    assert one.hash == several.hash
    assert resolve(config(corpus / "**" / "*.py"), tmp_path / "data").hash != one.hash


def test_one_long_line_is_cut_too(tmp_path):
    (tmp_path / "line.txt").write_text("word " * 100)
    data = resolve(config(tmp_path / "line.txt"), tmp_path / "data")
    assert len(data.train) == 450 + 1
    assert len(data.val) == 50 + 1


def test_changed_content_makes_another_data_set(corpus, tmp_path):
    first = resolve(config(corpus), tmp_path / "data")
    assert resolve(config(corpus), tmp_path / "data").folder == first.folder
    (corpus / "b.md").write_text("other words\n" * 40)
    changed = resolve(config(corpus), tmp_path / "data")
    assert changed.hash != first.hash
    assert resolve(config(corpus, val_fraction=0.3), tmp_path / "data").hash != changed.hash


def test_a_byte_order_mark_and_line_ends(tmp_path):
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\nfour\r\n")
    data = resolve(config(tmp_path / "windows.txt", val_fraction=0.4), tmp_path / "data")
    assert words(data.train) == ["one\r\ntwo\r\nthree\r\n"]
    assert words(data.val) == ["four\r\n"]


MEMORY = """
import resource, sys
from powerstep_repro.data import resolve
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
small, large, tokenizer, data_dir = sys.argv[1:]
config = {"kind": "text", "name": "text", "tokenizer": tokenizer, "val_fraction": 0.1}
resolve(config | {"path": small}, data_dir)
before = peak()
resolve(config | {"path": large}, data_dir)
print(peak() - before)
"""


@pytest.mark.parametrize("tokenizer", ["byte", "gpt2"])
def test_memory_does_not_grow_with_a_file(tmp_path, tokenizer):
    """27 times the file's size once, of which the tokens themselves, mapped, are two."""
    text = "The step is the sign of the momentum.\n"
    (tmp_path / "small.txt").write_text(text * 50_000)
    (tmp_path / "large.txt").write_text(text * 500_000)
    paths = [tmp_path / "small.txt", tmp_path / "large.txt", tokenizer, tmp_path / "data"]
    command = [sys.executable, "-c", MEMORY, *map(str, paths)]
    grown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(grown) < 4 * (tmp_path / "large.txt").stat().st_size


def test_gpt2_tokens(tmp_path):
    (tmp_path / "hello.txt").write_text("Hello world\nHello world")
    data = resolve(config(tmp_path / "hello.txt", tokenizer="gpt2", val_fraction=0.5), tmp_path)
    assert data.train.tolist() == [15496, 995, 198, 50256]
    assert data.val.tolist() == [15496, 995, 50256]
    assert data.vocab_size == 50257


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "holds no text"),
        (b"", "holds no text"),
        (b"good\ncaf\xe9 au lait", "bad.txt is not UTF-8 text: byte 0xe9 in line 2"),
        (b"x", "training split of data set text is empty"),
    ],
)
def test_bad_text_ends_in_a_sentence_and_leaves_nothing(tmp_path, content, sentence):
    folder = tmp_path / "corpus"
    folder.mkdir()
    if content is not None:
        (folder / "bad.txt").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        resolve(config(folder), tmp_path / "data")
    assert not list((tmp_path / "data").glob("*"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"path": None}, "needs data.path"),
        ({"path": "/no/such/place"}, "data.path=/no/such/place does not exist: it must be a text"),
        ({"path": "/no/such/*"}, r"data.path=/no/such/\* holds no text"),
        ({"kind": "nonsense"}, "data.kind='nonsense' is not one of"),
    ],
)
def test_bad_options(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        resolve({**config(tmp_path), **options}, tmp_path / "data")


def test_a_data_dir_that_cannot_be_made(corpus, tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(UserError, match="cannot be made"):
        resolve(config(corpus), tmp_path / "taken" / "data")
