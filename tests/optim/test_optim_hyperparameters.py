"""Hyperparameters: what is refused, by which sentence, and when; what is not.

Guards: values out of range at construction, in a group and set later; misspelt keys; a state that
is read another way than it was written.
"""

import copy
import pickle

import pytest
import torch
from optim_kit import parameters, take_steps

from powerstep_repro.optim import create, names

OURS = [name for name in names() if name != "adamw"]


BAD_VALUES = [
    ("powerstep", {"gamma": 1.0}, r"gamma must be a number in \[0, 1\), not 1.0"),
    ("powerstep", {"gamma": -0.1}, "gamma"),
    ("powerstep", {"beta": 1.5}, r"beta must be a number in \[0, 1\], not 1.5"),
    ("powerstep", {"beta": "0.1"}, "beta"),
    ("powerstep", {"beta": True}, "beta"),
    ("powerstep", {"lr": -1e-3}, "lr"),
    ("powerstep", {"lr": float("nan")}, "lr"),
    ("powerstep", {"lr": float("inf")}, "lr"),
    ("powerstep", {"lr": "6e-4"}, "lr"),
    ("powerstep", {"lr": torch.ones(2)}, "lr"),
    ("powerstep", {"lr": torch.tensor(-0.5)}, "lr must be a number in .* not -0.5"),
    ("powerstep", {"lr": torch.tensor(float("nan"))}, "lr"),
    ("powerstep", {"weight_decay": -0.1}, "weight_decay"),
    ("powerstep", {"implementation": "fast"}, "auto, reference, foreach, fused"),
    ("signsgd", {"gamma": 1}, "gamma"),
    ("pbsgdm", {"beta": 2}, "beta"),
    ("adams", {"betas": (0.9, 1.0)}, r"betas\[1\]"),
    ("adams", {"betas": 0.9}, "betas"),
    ("adams", {"eps": -1e-8}, "eps"),
    ("adamw", {"betas": [0.9, 1.0]}, r"betas\[1\]"),
    ("adamw", {"implementation": "fast"}, "implementation"),
    ("stacey", {"power": 1.5}, "power"),
    ("stacey", {"tau": 1.1}, "tau"),
    ("stacey", {"alpha": -1}, "alpha"),
    ("stacey", {"eps": 0}, "eps"),
    ("powerstep_int8", {"block_size": 0}, "block_size"),
    ("powerstep_int8", {"block_size": 12.5}, "block_size"),
    ("powerstep_int8", {"block_size": float("inf")}, "block_size"),
    ("powerstep_int8", {"block_size": float("nan")}, "block_size"),
    ("powerstep_int8", {"code": "nf4"}, "dynamic, linear"),
    ("adamw_int8", {"code_v": "nf4"}, "code_v"),
]


@pytest.mark.parametrize(("name", "hyper", "message"), BAD_VALUES)
def test_bad_hyperparameters_are_named(name, hyper, message):
    with pytest.raises(ValueError, match=message):
        create(name, parameters((2,)), **hyper)


@pytest.mark.parametrize(
    ("name", "hyper", "message"), [case for case in BAD_VALUES if case[0] != "adamw"]
)
def test_a_groups_own_hyperparameters_are_checked_too(name, hyper, message):
    first, second = parameters((2,), (2,))
    optimizer = create(name, [first])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [second], **hyper})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("name", "key", "meant"),
    [
        ("powerstep", "bta", "beta"),
        ("powerstep", "gama", "gamma"),
        ("powerstep", "betas", "beta"),
        ("powerstep", "LR", "lr"),
        ("powerstep", "weightdecay", "weight_decay"),
        ("powerstep", "Implementation", "implementation"),
        ("powerstep_int8", "blocksize", "block_size"),
        ("adams", "beta", "betas"),
    ],
)
def test_a_misspelt_key_of_a_group_is_refused(name, key, meant):
    """torch keeps it as a key of the user's own, and trains with the default."""
    first, second = parameters((2,), (2,))
    message = f"no hyperparameter '{key}'; did you mean '{meant}'.* allowed: lr, weight_decay, "
    with pytest.raises(ValueError, match=message):
        create(name, [{"params": [first], key: 0.3}])
    optimizer = create(name, [first])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [second], key: 0.3})
    assert len(optimizer.param_groups) == 1
    take_steps(optimizer, [first], steps=1)
    before = first.detach().clone()
    optimizer.param_groups[0][key] = 0.3
    with pytest.raises(ValueError, match=message):
        take_steps(optimizer, [first], steps=1)
    assert torch.equal(first, before)


@pytest.mark.parametrize("name", OURS)
def test_a_groups_other_keys_are_the_users_own(name):
    """Schedules, frameworks and users keep theirs there; another optimizer's do no harm."""
    (p,) = parameters((2,))
    own = "name lr_scale lr_mult weight_decay_scale layer block mode meta tag step decay epsilon"
    torchs = "initial_lr max_lr min_lr swa_lr base_momentum max_momentum momentum foreach fused"
    torchs += " capturable differentiable maximize amsgrad decoupled_weight_decay"
    keys = dict.fromkeys(f"{own} {torchs}".split(), 0)
    group = create(name, [{"params": [("weight", p)], **keys}]).param_groups[0]
    assert group.items() >= keys.items()
    create(name, [{**group, "params": [p]}])  # with "param_names" and all hyperparameters


@pytest.mark.parametrize(
    ("name", "hyper", "message"), [case for case in BAD_VALUES if case[0] != "adamw"]
)
def test_a_value_set_later_is_checked_before_anything_changes(name, hyper, message):
    """Schedules and users write into the groups, here the last of two."""
    first, second = parameters((2,), (2,))
    optimizer = create(name, [{"params": [first]}, {"params": [second]}])
    take_steps(optimizer, [first, second])
    before = first.detach().clone()
    group = optimizer.param_groups[1]
    held = dict(group)
    group.update(hyper)
    for _ in range(2):  # a refusal is no acceptance
        with pytest.raises(ValueError, match=message):
            optimizer.step()
    assert torch.equal(first, before)
    group.update(held)
    optimizer.step()
    assert not torch.equal(first, before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_value_set_later_takes_effect_in_plain_form(copied):
    """A list that is changed in place must not slip through, nor a copy go unchecked."""
    (p,) = parameters((2,))
    optimizer = create("adams", [p])
    take_steps(optimizer, [p])
    optimizer.param_groups[0]["betas"] = [0.5, 0.5]
    take_steps(optimizer, [p])
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.5)
    other = copied(optimizer)
    other.param_groups[0]["eps"] = -1.0
    with pytest.raises(ValueError, match="eps"):
        other.step()


@pytest.mark.parametrize(
    ("name", "hyper"),
    [("powerstep_int8", {"block_size": 64}), ("adamw_int8", {"code_v": "linear"})],
)
def test_how_a_state_is_read_stays(name, hyper):
    """With blocks half the size a kernel would read scales that are not there."""
    (p,) = parameters((300,))
    optimizer = create(name, [p])
    optimizer.param_groups[0].update(hyper)  # before the first step it is free
    take_steps(optimizer, [p], steps=1)
    saved = optimizer.state_dict()
    other = create(name, [p])
    take_steps(other, [p], steps=1)
    other.param_groups[0].update(hyper)
    ((key, value),) = hyper.items()
    with pytest.raises(ValueError, match=f"{key} must stay .* not {value!r}"):
        other.step()
    other.load_state_dict(saved)  # which brings a state that it fits
    take_steps(other, [p], steps=1)


@pytest.mark.parametrize(
    "again",
    [
        copy.deepcopy,
        lambda o: pickle.loads(pickle.dumps(o)),
        lambda o: o.load_state_dict(o.state_dict()) or o,
    ],
    ids=["deepcopy", "pickle", "load_state_dict"],
)
@pytest.mark.parametrize("hyper", [{"code": "linear"}, {"block_size": 64}, {"block_size": 256}])
def test_how_a_loaded_or_copied_state_is_read_stays(again, hyper):
    """Where its hyperparameters come from the checkpoint, users write theirs after loading it."""
    (p,) = parameters((300,))
    optimizer = create("powerstep_int8", [p])
    take_steps(optimizer, [p], steps=1)
    other = again(optimizer)
    other.param_groups[0].update(hyper)
    ((key, value),) = hyper.items()
    with pytest.raises(ValueError, match=f"{key} must stay .* not {value!r}"):
        take_steps(other, other.param_groups[0]["params"], steps=1)


def test_a_group_that_lost_a_hyperparameter_is_named():
    (p,) = parameters((2,))
    optimizer = create("powerstep", [p])
    del optimizer.param_groups[0]["beta"]
    with pytest.raises(ValueError, match="a parameter group of PowerStep lost its 'beta'"):
        take_steps(optimizer, [p], steps=1)


def test_hyperparameters_land_in_plain_form():
    """Guards checkpoints that ``weights_only`` refuses: numpy scalars and configuration lists."""
    np = pytest.importorskip("numpy")
    optimizer = create("adams", parameters((2,)), lr=np.float64(0.1), betas=[0.9, np.float32(0.5)])
    group = optimizer.param_groups[0]
    assert type(group["lr"]) is float
    assert group["betas"] == (0.9, 0.5)
    assert [type(b) for b in group["betas"]] == [float, float]


def test_a_rate_that_misses_zero_by_rounding_is_not_refused():
    """torch's LinearLR down to 0 ends a little below it: neither a step nor a load may fail."""
    (p,) = parameters((3,))
    optimizer = create("powerstep", [p])
    optimizer.param_groups[0]["lr"] = -5e-17
    take_steps(optimizer, [p], steps=1)
    create("powerstep", [p]).load_state_dict(optimizer.state_dict())
