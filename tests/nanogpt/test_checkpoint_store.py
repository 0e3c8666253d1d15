"""Guards the checkpoint files: damage is found, the newest valid one is taken, none is lost."""

import hashlib
import os
import resource
import warnings

import numpy as np
import pytest
import torch

from nanogpt.checkpoint import CheckpointStore
from nanogpt.errors import CheckpointError, UserError

CONFIG = {"lr": 0.1, "model": {"layers": 2, "betas": [0.9, 0.95]}}


def state(value):
    return {
        "model": {
            "w": torch.full((300,), float(value)),
            "code": torch.arange(9, dtype=torch.uint8),
        },
        "optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": [0]}]},
        "val_loss": None,
    }


def steps_there(store):
    return sorted(int(path.name.split("-")[1]) for path in store.folder.glob("step-*-*.pt"))


def file_of(store, step):
    (path,) = store.folder.glob(f"step-{step:08d}-*.pt")
    return path


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", CONFIG, keep=3)


def test_nothing_there(store):
    assert store.load() is None


def test_round_trip_keeps_types_dtypes_and_bits(store):
    store.save(5, state(0.1))
    step, loaded = store.load()
    assert step == 5
    assert torch.equal(loaded["model"]["w"], torch.full((300,), 0.1))
    assert loaded["model"]["code"].dtype == torch.uint8
    assert loaded["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.95)
    assert loaded["val_loss"] is None


def test_newest_is_taken_as_a_number_and_only_the_newest_are_kept(store):
    for step in (8, 9, 10, 11, 100_000_000):
        store.save(step, state(step))
    assert steps_there(store) == [10, 11, 100_000_000]
    assert store.load()[0] == 100_000_000


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, empty, flip])
def test_a_damaged_newest_is_passed_over_with_a_warning(store, damage):
    for step in (1, 2, 3):
        store.save(step, state(step))
    damage(file_of(store, 3))
    with pytest.warns(UserWarning, match=r"step-00000003-\w+\.pt is passed over: its content"):
        assert store.load()[0] == 2
    damage(file_of(store, 2))
    with pytest.warns(UserWarning, match="passed over") as warned:
        assert store.load()[0] == 1
    assert len(warned) == 2


def test_a_missing_newest_means_the_one_before(store):
    for step in (1, 2):
        store.save(step, state(step))
    file_of(store, 2).unlink()
    assert store.load()[0] == 1


def test_damaged_files_never_push_out_healthy_ones(tmp_path):
    store = CheckpointStore(tmp_path, CONFIG, keep=1)
    store.save(20, state(20))
    truncate(file_of(store, 20))
    store.save(10, state(10))  # resumed from before 20
    assert steps_there(store) == [10]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.load()[0] == 10


def test_every_single_bit_counts(store):
    store.save(1, {"w": torch.zeros(3)})
    path = file_of(store, 1)
    whole = path.read_bytes()
    for at in np.random.default_rng(0).integers(0, 8 * len(whole), 60):
        content = bytearray(whole)
        content[at // 8] ^= 1 << at % 8
        path.write_bytes(content)
        with pytest.warns(UserWarning, match="passed over"):
            assert store.load() is None


def test_another_configuration_is_refused_by_its_keys(store):
    store.save(1, state(1))
    other = {"lr": 0.2, "model": {"layers": 2, "betas": [0.9, 0.95]}, "seed": 1}
    with pytest.raises(UserError) as caught:
        CheckpointStore(store.folder, other).load()
    sentence = str(caught.value)
    assert "lr (0.1 there, 0.2 here)" in sentence
    assert "seed ('absent' there, 1 here)" in sentence
    assert "layers" not in sentence


def test_what_earlier_versions_wrote_still_loads(store, tmp_path):
    """The file written out by hand, as the first version did."""
    payload = {"format": 1, "step": 7, "config": CONFIG, "state": state(7)}
    torch.save(payload, tmp_path / "file")
    digest = hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()
    store.folder.mkdir()
    (tmp_path / "file").rename(store.folder / f"step-00000007-{digest[:16]}.pt")
    step, loaded = store.load()
    assert step == 7
    assert torch.equal(loaded["model"]["w"], torch.full((300,), 7.0))


def test_another_format_is_refused(store, monkeypatch):
    monkeypatch.setattr("nanogpt.checkpoint.FORMAT", 0)
    store.save(1, state(1))
    monkeypatch.undo()
    with pytest.raises(UserError, match="has format 0; this version reads 1"):
        store.load()


@pytest.mark.parametrize("room", [0, 1000, 100_000])
def test_a_full_disk_leaves_the_old_checkpoint(store, room):
    store.save(1, state(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(CheckpointError, match=r"step 2 could not be written to .*: .*large"):
            store.save(2, {"w": torch.randn(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(store.folder) == [file_of(store, 1).name]
    assert store.load()[0] == 1


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="step 1 could not be written"):
        CheckpointStore(tmp_path / "file" / "checkpoints", CONFIG).save(1, state(1))


def test_the_half_written_file_of_a_killed_process_is_ignored_and_removed(store):
    store.save(1, state(1))
    (store.folder / "step-00000002.pt.tmp").write_bytes(b"half")
    assert store.load()[0] == 1
    store.save(3, state(3))
    assert not list(store.folder.glob("*.tmp"))


def test_a_users_copy_is_left_alone(store):
    """Whatever it is called, it is neither removed nor loaded."""
    store.save(1, state(1))
    names = ["step-best.pt", f"{file_of(store, 1).name}.bak", "step-00000001.pt.tmp.keep", "x.tmp"]
    for name in names:
        (store.folder / name).write_bytes(file_of(store, 1).read_bytes())
    for step in (2, 3, 4, 5):
        store.save(step, state(step))
    assert steps_there(store) == [3, 4, 5]
    assert {path.name for path in store.folder.iterdir()} >= set(names)
    for step in (3, 4, 5):
        file_of(store, step).unlink()
    assert store.load() is None


class Custom(dict):
    pass


class Piece(torch.Tensor):
    """As DTensor is: a tensor of which this process may hold a part."""


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float64(1), "numpy.float64"),
        ({1, 2}, "builtins.set"),
        (Piece(torch.zeros(2)), "test_checkpoint_store.Piece"),
    ],
)
def test_what_weights_only_would_refuse_is_refused_when_saving(store, value, kind):
    with pytest.raises(TypeError, match=rf"state\.optimizer\.groups\[0\]\.x is a {kind}"):
        store.save(1, {"optimizer": {"groups": [{"x": value}]}})
    with pytest.raises(TypeError, match=r"config\.x is a"):
        CheckpointStore(store.folder, {"x": value})
    store.save(1, Custom(w=Custom(v=1)))  # a dict's subclass becomes a dict
    assert type(store.load()[1]["w"]) is dict
