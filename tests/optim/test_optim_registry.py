"""Optimizers by name, their configuration files, and their memory on paper and as measured."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import powerstep_repro.optim as optim
from powerstep_repro.optim import bytes_per_param, create, names, state_bytes
from powerstep_repro.optim import registry as registry_module

CONF = Path(__file__).parents[2] / "conf" / "optimizer"

# State bytes a float32 parameter: the paper's two moments, one moment, and codes with scales.
BYTES = {
    "adams": 4,
    "adams_released": 4,
    "adamw": 8,
    "adamw_int8": 2.0625,
    "adamw_int8_released": 2.0625,
    "pbsgdm": 4,
    "pbsgdm_released": 4,
    "powerstep": 4,
    "powerstep_int8": 1.03125,
    "powerstep_int8_released": 1.03125,
    "signsgd": 4,
    "stacey": 8,
    "stacey_released": 8,
}


def test_torch_alone_is_enough():
    """Guards the extra ``optim``, which brings torch and nothing else."""
    code = "import sys; sys.modules['numpy'] = None; import powerstep_repro.optim"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_names():
    assert names() == sorted(BYTES)


@pytest.mark.parametrize("name", sorted(BYTES))
def test_measured_bytes_are_the_analytic_ones(name):
    """Scales count, step counters do not."""
    params = [torch.nn.Parameter(torch.ones(n)) for n in (128, 1280, 256 * 128)]
    optimizer = create(name, params)
    assert state_bytes(optimizer) == 0
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    total = sum(p.numel() for p in params)
    assert bytes_per_param(name) == BYTES[name]
    assert state_bytes(optimizer) == BYTES[name] * total


@pytest.mark.parametrize("block_size", [1, 32, 100])
def test_bytes_follow_the_block_size(block_size):
    p = torch.nn.Parameter(torch.ones(block_size * 7))
    optimizer = create("powerstep_int8", [p], block_size=block_size)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert bytes_per_param("powerstep_int8", block_size=block_size) == 1 + 4 / block_size
    assert state_bytes(optimizer) == pytest.approx((1 + 4 / block_size) * p.numel())


def test_an_odd_size_costs_no_padding_but_a_scale():
    p = torch.nn.Parameter(torch.ones(129))
    optimizer = create("powerstep_int8", [p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert state_bytes(optimizer) == 129 + 2 * 4


def test_scales_are_float32_whatever_the_parameter_but_not_as_released():
    for name, bytes_ in [("powerstep_int8", 128 + 4), ("powerstep_int8_released", 128 + 2)]:
        p = torch.nn.Parameter(torch.ones(128, dtype=torch.bfloat16))
        optimizer = create(name, [p])
        p.grad = torch.ones_like(p)
        optimizer.step()
        assert state_bytes(optimizer) == bytes_


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ValueError, match=r"'powerstpe'; did you mean 'powerstep'\?"):
        create("powerstpe", [])
    with pytest.raises(ValueError, match="allowed: adams"):
        create("zzz", [])
    with pytest.raises(ValueError, match=r"'gama'; did you mean 'gamma'\?"):
        create("powerstep", [torch.nn.Parameter(torch.ones(1))], gama=0.9)
    with pytest.raises(ValueError, match=r"'beta'.*allowed: gamma, implementation, lr"):
        create("signsgd", [torch.nn.Parameter(torch.ones(1))], beta=0.1)
    with pytest.raises(ValueError, match="no hyperparameter"):
        bytes_per_param("powerstep", blocksize=128)


def test_every_class_is_a_name_of_the_package():
    classes = [e.factory for e in registry_module._ENTRIES.values() if isinstance(e.factory, type)]
    assert len(classes) == len(names()) - 1  # adamw makes torch's own
    assert all(getattr(optim, found.__name__) is found for found in classes)


def test_a_name_cannot_be_taken_twice():
    with pytest.raises(ValueError, match="twice"):
        registry_module.register("powerstep", bytes_per_param=4)(object)


def test_a_new_optimizer_needs_its_own_file_only(tmp_path, monkeypatch):
    """A module beside the others is found; nothing lists them."""
    module = tmp_path / "descent.py"
    module.write_text(
        "import torch\n"
        "from powerstep_repro.optim.registry import register\n\n\n"
        "@register('descent', bytes_per_param=0)\n"
        "def descent(params, lr=1e-3):\n"
        "    return torch.optim.SGD(params, lr=lr)\n\n\n"
        "@register('ascent', bytes_per_param=0)\n"
        "class Ascent(torch.optim.SGD): ...\n"
    )
    monkeypatch.setattr(registry_module, "_ENTRIES", dict(registry_module._ENTRIES))
    monkeypatch.setattr(optim, "__path__", [*optim.__path__, str(tmp_path)])
    assert registry_module.discover(optim.__name__, optim.__path__)["Ascent"].__name__ == "Ascent"
    monkeypatch.delitem(sys.modules, "powerstep_repro.optim.descent")
    assert "descent" in names()


@pytest.mark.parametrize("name", sorted(BYTES))
def test_configuration_file(name):
    """A file per optimizer, with its name and its own hyperparameters at the class's values."""
    config = pytest.importorskip("omegaconf").OmegaConf.load(CONF / f"{name}.yaml")
    config = dict(config)
    assert config.pop("name") == name
    signature = inspect.signature(registry_module._ENTRIES[name].factory)
    defaults = {
        key: parameter.default
        for key, parameter in signature.parameters.items()
        if key not in ("params", "lr", "weight_decay", "implementation")
    }
    assert {k: tuple(v) if k == "betas" else v for k, v in config.items()} == defaults
    create(name, [torch.nn.Parameter(torch.ones(2))], lr=1e-3, weight_decay=0.1, **config)


def test_no_configuration_without_an_optimizer():
    assert sorted(path.stem for path in CONF.glob("*.yaml")) == names()


@pytest.mark.parametrize("name", sorted(BYTES))
def test_defaults_do_not_decay(name):
    """Decay belongs to a training set-up; no optimizer of a comparison brings its own."""
    p = torch.nn.Parameter(torch.ones(3))
    assert create(name, [p]).param_groups[0]["weight_decay"] == 0
