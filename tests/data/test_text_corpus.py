"""Local text: which files count, where they are cut, and that changed files are seen."""

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
        (b"caf\xe9 au lait", "bad.txt is not UTF-8 text: byte 0xe9 at offset 3"),
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
    left = (tmp_path / "data").glob("*") if (tmp_path / "data").exists() else []
    assert not [path for path in left if path.suffix != ".lock"]


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
