"""Guards the data: batches are a pure function of (seed, step, position); bad files are named."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_kit import CONTEXT, VOCAB, write_data

from nanogpt.data import TokenData, dataset_hash
from nanogpt.errors import UserError


def test_targets_follow_inputs_and_come_from_the_file(data):
    x, y = data.batch(seed=1, step=1, context=CONTEXT, batch=8)
    assert x.shape == y.shape == (8, CONTEXT)
    assert x.dtype == y.dtype == np.int64
    assert (x[:, 1:] == y[:, :-1]).all()
    text = data.train.astype("<u2").tobytes()
    for row, last in zip(x, y[:, -1:], strict=True):
        assert np.concatenate([row, last]).astype("<u2").tobytes() in text


@given(
    seed=st.integers(0, 2**63),
    step=st.integers(1, 10**6),
    world=st.sampled_from([1, 2, 3, 4]),
    micro=st.sampled_from([1, 2, 3]),
    rounds=st.integers(1, 3),
)
def test_any_split_sees_the_same_global_batch(data, seed, step, world, micro, rounds):
    batch = world * micro * rounds
    whole = data.batch(seed, step, CONTEXT, batch)
    pieces = [
        data.batch(seed, step, CONTEXT, batch, slice(i, i + micro)) for i in range(0, batch, micro)
    ]
    for side in (0, 1):
        assert (np.concatenate([piece[side] for piece in pieces]) == whole[side]).all()
    # A position's sequence does not depend on the size of the batch around it either.
    assert (data.batch(seed, step, CONTEXT, batch + 5)[0][:batch] == whole[0]).all()


def permuted(data, seed, step, batch, positions=slice(None), context=CONTEXT):
    """The sequences of a step, each with its last target."""
    x, y = data.batch(seed, step, context, batch, positions, "permuted")
    return np.concatenate([x, y[:, -1:]], 1)


@given(
    seed=st.integers(0, 2**63),
    context=st.sampled_from([16, 100, 199]),
    batch=st.integers(1, 70),
    passes=st.integers(1, 3),
)
def test_permuted_each_window_comes_once_a_pass(data, seed, context, batch, passes):
    """Whatever the batch, which may end in the middle of a pass or take several."""
    windows = (len(data.train) - 1) // context
    every = np.stack([data.train[i * context : (i + 1) * context + 1] for i in range(windows)])
    steps = range(1, -(-passes * windows // batch) + 1)
    drawn = np.concatenate([permuted(data, seed, step, batch, context=context) for step in steps])
    for start in range(0, passes * windows, windows):
        one = drawn[start : start + windows]
        assert sorted(map(tuple, one)) == sorted(map(tuple, every.astype(np.int64)))


@given(
    seed=st.integers(0, 2**63),
    step=st.integers(1, 10**4),
    world=st.sampled_from([1, 2, 3, 4]),
    micro=st.sampled_from([1, 2, 3]),
    rounds=st.integers(1, 30),
)
def test_permuted_any_split_sees_the_same_global_batch(data, seed, step, world, micro, rounds):
    """And any step is drawn without those before it: by a resumed run, say."""
    batch = world * micro * rounds
    whole = permuted(data, seed, step, batch)
    pieces = [
        permuted(data, seed, step, batch, slice(i, i + micro)) for i in range(0, batch, micro)
    ]
    assert (np.concatenate(pieces) == whole).all()
    # The same sequences in steps of half the size.
    if batch % 2 == 0:
        halves = [permuted(data, seed, s, batch // 2) for s in (2 * step - 1, 2 * step)]
        assert (np.concatenate(halves) == whole).all()


def test_permuted_orders_differ_by_seed_and_by_pass(data):
    windows = (len(data.train) - 1) // CONTEXT
    orders = {
        (seed, number): permuted(data, seed, number, windows).tobytes()
        for seed in range(3)
        for number in range(1, 4)
    }
    assert len(set(orders.values())) == 9


def test_seeds_and_steps_do_not_share_batches(data):
    drawn = {
        (seed, step): data.batch(seed, step, CONTEXT, 16)[0].tobytes()
        for seed in range(4)
        for step in range(1, 5)
    }
    assert len(set(drawn.values())) == 16


def test_windows_cover_the_whole_split(tmp_path):
    data = TokenData.open(write_data(tmp_path, train_tokens=CONTEXT + 3, val_tokens=CONTEXT + 1))
    starts = {tuple(row) for step in range(1, 100) for row in data.batch(0, step, CONTEXT, 4)[0]}
    assert len(starts) == 3
    assert data.val_windows(CONTEXT).shape == (1, CONTEXT + 1)


def test_validation_windows_are_fixed_and_predict_each_token_once(data):
    windows = data.val_windows(CONTEXT)
    assert windows.shape == ((200 - 1) // CONTEXT, CONTEXT + 1)
    targets = windows[:, 1:].ravel()
    assert (targets == data.val[1 : len(targets) + 1]).all()
    assert (windows[:, 0] == data.val[: len(targets) : CONTEXT]).all()
    assert (data.val_windows(CONTEXT, 3) == windows[:3]).all()
    assert (data.val_windows(CONTEXT, 999) == windows).all()


def test_uint32_holds_large_vocabularies(tmp_path):
    folder = write_data(tmp_path, dtype="uint32", vocab_size=151_936)
    tokens = np.fromfile(folder / "train.bin", "<u4")
    tokens[:] = 151_935
    tokens.tofile(folder / "train.bin")
    x, _ = TokenData.open(folder).batch(0, 1, CONTEXT, 2)
    assert (x == 151_935).all()


def test_hash_depends_on_both_files_and_the_dtype():
    hashes = {dataset_hash(*key) for key in [("a", "b", "uint16"), ("b", "a", "uint16")]}
    hashes |= {dataset_hash("a", "b", "uint32")}
    assert len(hashes) == 3
    assert {len(h) for h in hashes} == {16}


def cut(folder):
    (folder / "train.bin").write_bytes((folder / "train.bin").read_bytes()[:-3])


def lengthen(folder):
    (folder / "val.bin").write_bytes((folder / "val.bin").read_bytes() + b"\0\0")


def raise_id(folder):
    tokens = np.fromfile(folder / "val.bin", "<u2")
    tokens[-1] = VOCAB
    tokens.tofile(folder / "val.bin")


def change(**changes):
    def apply(folder):
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, **changes}))

    return apply


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (cut, r"train\.bin has 5997 bytes where its description says 3000 tokens of uint16"),
        (lengthen, r"val\.bin has 402 bytes where"),
        (raise_id, r"val\.bin holds token id 61, beyond the vocabulary of 61"),
        (lambda f: (f / "val.bin").unlink(), r"val\.bin is missing"),
        (lambda f: (f / "meta.json").unlink(), r"no data set in .*: meta\.json is missing"),
        (lambda f: (f / "meta.json").write_text("{"), r"meta\.json cannot be read"),
        (lambda f: (f / "meta.json").write_text("[]"), r"meta\.json has format \[\]"),
        (change(format=99), r"meta\.json has format 99; this version reads format 1"),
        (change(dtype="int8"), r"dtype 'int8'; allowed are uint16 and uint32"),
        (change(vocab_size="many"), r"vocab_size = 'many'; it must be a whole number"),
        (change(train_tokens=0), r"train_tokens = 0; it must be a whole number, at least 1"),
    ],
)
def test_damaged_folders_are_named_in_one_sentence(tmp_path, damage, sentence):
    damage(write_data(tmp_path))
    with pytest.raises(UserError, match=sentence) as caught:
        TokenData.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_id_beyond_the_vocabulary_is_caught_in_files_too_large_to_scan(tmp_path, monkeypatch):
    monkeypatch.setattr("nanogpt.data.SCAN_LIMIT", 10)
    data = TokenData.open(write_data(tmp_path, vocab_size=40))
    with pytest.raises(UserError, match=r"train\.bin holds token id 60, beyond .* of 40"):
        data.batch(0, 1, CONTEXT, 200)
    with pytest.raises(UserError, match=r"val\.bin holds token id"):
        data.val_windows(CONTEXT)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_shorter_than_the_context(tmp_path, split):
    data = TokenData.open(write_data(tmp_path, **{f"{split}_tokens": CONTEXT}))
    sentence = rf"{split}\.bin has 16 tokens, too few for one window of context 16 \(it needs 17\)"
    with pytest.raises(UserError, match=sentence):
        data.val_windows(CONTEXT)
    with pytest.raises(UserError, match=sentence):
        data.batch(0, 1, CONTEXT, 2)
