"""Hyperparameters: what is refused, by which sentence, and when; what is not.

Guards: values out of range at construction and in a group, and users' own keys beside them.
"""

import subprocess
import sys

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
    ("powerstep_int8", {"block_size": 10**12}, "a whole number from 1 to 1048576, not 10000"),
    ("powerstep_int8", {"whole_blocks": "false"}, "whole_blocks must be True or False"),
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


def test_hyperparameters_land_in_plain_form():
    """Guards checkpoints that ``weights_only`` refuses: numpy scalars and configuration lists."""
    np = pytest.importorskip("numpy")
    optimizer = create("adams", parameters((2,)), lr=np.float64(0.1), betas=[0.9, np.float32(0.5)])
    group = optimizer.param_groups[0]
    assert type(group["lr"]) is float
    assert group["betas"] == (0.9, 0.5)
    assert [type(b) for b in group["betas"]] == [float, float]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("value", ["0.5", [0.5], True, torch.ones(2), torch.ones(()).int(), 1j])
def test_a_bad_gradient_factor_is_refused_before_anything_changes(name, value):
    (p,) = parameters((3,))
    optimizer = create(name, [p], lr=0.1)
    before, p.grad = p.detach().clone(), torch.ones(3)
    with pytest.raises(ValueError, match="grad_factor must be one real number or a tensor of one"):
        optimizer.step(grad_factor=value)
    assert torch.equal(p, before)
    assert not optimizer.state


def test_a_default_device_does_no_harm():
    """Tables that are made once would lie on whatever device was the default then."""
    code = (
        "import torch; torch.set_default_device('meta')\n"
        "from powerstep_repro.optim import create, names\n"
        "for name in set(names()) - {'adamw'}:\n"  # torch's own, which under 2.10 does not stand it
        "    p = torch.nn.Parameter(torch.ones(3, 128, device='cpu'))\n"
        "    optimizer = create(name, [p], lr=0.1)\n"
        "    p.grad = torch.ones_like(p)\n"
        "    optimizer.step()\n"
        "    assert p.device.type == 'cpu' and not (p == 1).any(), name\n"
        "    assert all(v.device.type == 'cpu' for v in optimizer.state[p].values()), name\n"
        "    optimizer.load_state_dict(optimizer.state_dict())\n"
        "    optimizer.step(grad_factor=0.5)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", [name for name in OURS if "int8" in name])
def test_a_group_may_keep_its_state_in_full_precision(name):
    """And has the numbers of an optimizer whose state is all so, however the others are stored."""
    one, two = parameters((6, 128), (6, 128))
    optimizer = create(name, [{"params": [one]}, {"params": [two], "quantized": False}], lr=0.1)
    take_steps(optimizer, [one, two])
    assert any(key.endswith("_codes") for key in optimizer.state[one])
    assert not any(key.endswith(("_codes", "_scales")) for key in optimizer.state[two])
    full = {"powerstep": "powerstep", "adamw": "adamw"}[name.split("_")[0]]
    three, four = parameters((6, 128), (6, 128))
    take_steps(create(full, [three, four], lr=0.1), [three, four])
    torch.testing.assert_close(two, four, rtol=1e-5, atol=1e-6)
    assert not torch.equal(one, three)
    resumed = create(name, [{"params": [one]}, {"params": [two]}])
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.state[two].keys() == optimizer.state[two].keys()
    with pytest.raises(ValueError, match="quantized must be True or False, not 'no'"):
        create(name, [{"params": [one], "quantized": "no"}])


@pytest.mark.parametrize("name", [name for name in OURS if "int8" in name])
def test_whole_blocks_is_a_rule_on_the_shape(name):
    """So that one device and many have the same state, whatever the cut."""
    shapes = [(128,), (1, 128), (3, 256), (3, 2, 128), (128, 3), (130, 130), ()]
    params = parameters(*shapes)
    optimizer = create(name, params, lr=0.1, whole_blocks=True)
    take_steps(optimizer, params, steps=1)
    quantized = [any(k.endswith("_codes") for k in optimizer.state[p]) for p in params]
    assert quantized == [False, True, True, True, False, False, False]
