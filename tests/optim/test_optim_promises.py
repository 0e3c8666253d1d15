"""What every optimizer here promises beyond torch's contract (test_optim_contract.py has that).

Guards: refusals before anything changes, untouched gradients, precision, layouts, and a step that
never waits for the device.
"""

import pytest
import torch
from optim_kit import parameters, take_steps

from powerstep_repro.optim import create, names, state_bytes
from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.fused import Kernel

OURS = [name for name in names() if name != "adamw"]
all_names = pytest.mark.parametrize("name", names())
our_names = pytest.mark.parametrize("name", OURS)
implementations = pytest.mark.parametrize("implementation", ["reference", "foreach"])


@all_names
@implementations
def test_gradients_stay_as_they_were(name, implementation):
    params = parameters((5, 3), (7,))
    optimizer = create(name, params, implementation=implementation)
    for _ in range(2):
        for p in params:
            p.grad = torch.randn_like(p)
        before = [(p.grad, p.grad.clone()) for p in params]
        optimizer.step()
        for p, (grad, values) in zip(params, before, strict=True):
            assert p.grad is grad
            assert torch.equal(grad, values)


@our_names
@pytest.mark.parametrize("kind", ["sparse", "complex"])
def test_bad_gradients_are_refused_before_anything_changes(name, kind):
    """The good parameter comes first, so that a late check would have moved it."""
    good, bad = parameters((3,), (4, 2))
    optimizer = create(name, [{"params": [good]}, {"params": [bad]}], lr=0.1, weight_decay=0.1)
    good.grad = torch.ones_like(good)
    if kind == "sparse":
        bad.grad = torch.ones(4, 2).to_sparse()
    else:
        bad = torch.nn.Parameter(torch.ones(4, 2))
        bad.grad_dtype = None  # lets a gradient have a dtype of its own
        bad.grad = torch.ones(4, 2, dtype=torch.complex64)
        optimizer.param_groups[1]["params"] = [bad]
    before = good.detach().clone()
    with pytest.raises(ValueError, match=kind if kind == "complex" else "dense"):
        optimizer.step()
    assert torch.equal(good, before)
    assert not optimizer.state


@our_names
@implementations
@pytest.mark.parametrize("size", [(3, 2), (200,)])
def test_a_resized_parameter_is_refused_before_anything_changes(name, implementation, size):
    """A kernel would write beyond the end of a smaller state, and a list form leave a rest out."""
    good, bad = parameters((3,), (4, 3))
    optimizer = create(name, [{"params": [good]}, {"params": [bad]}], implementation=implementation)
    take_steps(optimizer, [good, bad], steps=2)
    before = good.detach().clone()
    bad.grad = None
    bad.data = torch.ones(size)
    for _ in range(2):  # a refusal is no acceptance
        with pytest.raises(ValueError, match=r"a state of 12 elements .* not for a parameter of"):
            take_steps(optimizer, [good, bad], steps=1)
    assert torch.equal(good, before)
    del optimizer.state[bad]
    take_steps(optimizer, [good, bad], steps=1)
    assert not torch.equal(bad, torch.ones(size))


@our_names
@implementations
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_parameters_get_float32_arithmetic(name, implementation, dtype):
    """A step is the float32 step of the same values, rounded once; state is not rounded."""
    (low,) = parameters((33, 5), dtype=dtype)
    optimizer = create(name, [low], lr=0.01, weight_decay=0.1, implementation=implementation)
    for step in range(5):
        gradient = torch.randn(33, 5, generator=torch.Generator().manual_seed(step)).to(dtype)
        exact = torch.nn.Parameter(low.detach().float())
        twin = create(name, [exact], lr=0.01, weight_decay=0.1, implementation=implementation)
        if step:
            twin.load_state_dict(optimizer.state_dict())
        low.grad, exact.grad = gradient.clone(), gradient.float()
        optimizer.step()
        twin.step()
        assert torch.equal(low, exact.to(dtype))
    scales = torch.float32 if "released" not in name else dtype
    for key, value in optimizer.state[low].items():
        if key.endswith("_scales"):
            assert value.dtype == scales
        elif not key.endswith("_codes"):
            assert value.dtype == torch.float32


@pytest.mark.parametrize("name", [name for name in OURS if "int8" not in name])
def test_float64_parameters_get_float64_arithmetic(name):
    (p,) = parameters((3,), dtype=torch.float64)
    optimizer = create(name, [p])
    take_steps(optimizer, [p])
    assert all(v.dtype == torch.float64 for k, v in optimizer.state[p].items() if k != "step")


@our_names
@implementations
@pytest.mark.parametrize("layout", ["transposed", "channels_last", "gradient", "scalar"])
def test_any_layout(name, implementation, layout):
    """Strides are the memory's business: the result is that of contiguous tensors."""
    values = torch.randn((2, 3, 4, 5) if layout != "scalar" else (), generator=None)
    gradients = torch.randn(5, *values.shape)
    plain = torch.nn.Parameter(values.clone())
    if layout == "transposed":
        other = torch.nn.Parameter(values.transpose(0, 3).contiguous().transpose(0, 3))
    elif layout == "channels_last":
        other = torch.nn.Parameter(values.clone(memory_format=torch.channels_last))
    else:
        other = torch.nn.Parameter(values.clone())
    pair = [
        (p, create(name, [p], lr=0.1, weight_decay=0.1, implementation=implementation))
        for p in (plain, other)
    ]
    for g in gradients:
        plain.grad = g.clone()
        other.grad = g.clone()
        if layout == "gradient":
            other.grad = g.transpose(0, 1).contiguous().transpose(0, 1)
        for _, optimizer in pair:
            optimizer.step()
    torch.testing.assert_close(other, plain, rtol=1e-6, atol=1e-7)
    assert state_bytes(pair[0][1]) == state_bytes(pair[1][1])


@our_names
@implementations
@pytest.mark.parametrize("tensor_rate", [False, True])
def test_a_step_never_reads_the_device(name, implementation, tensor_rate):
    """On the meta device there is nothing to read: ``.item()`` or a data-dependent branch fails."""
    rate = torch.tensor(0.1, device="meta") if tensor_rate else 0.1
    p = torch.nn.Parameter(torch.empty(300, 5, device="meta"))
    optimizer = create(name, [p], lr=rate, weight_decay=0.1, implementation=implementation)
    for _ in range(2):
        p.grad = torch.empty_like(p)
        optimizer.step()
    assert state_bytes(optimizer) >= p.numel()


def test_a_subclass_with_its_own_rule_inherits_no_fast_path():
    """A released twin must never run on its plain parent's kernel."""

    class Plain(BaseOptimizer):
        kernel = Kernel("plain", lambda hyper: (0.0, 0.0))

        @staticmethod
        def update(p, g, **rest): ...

        @staticmethod
        def foreach_update(p, g, **rest): ...

    class SameRule(Plain): ...

    class OtherRule(Plain):
        @staticmethod
        def update(p, g, **rest): ...

    assert SameRule.foreach_update is Plain.foreach_update
    assert OtherRule.foreach_update is None
    assert SameRule.kernel is Plain.kernel
    assert OtherRule.kernel is None


@pytest.mark.parametrize("name", ["powerstep", "powerstep_int8", "adamw_int8"])
def test_a_compiled_training_step_is_the_eager_one(name):
    """The model's part is compiled, the optimizer's runs as it is."""
    eager, compiled = parameters((8, 4))[0], parameters((8, 4))[0]

    def trained(p):
        optimizer = create(name, [p], lr=0.1)

        def step():
            (p**2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    for step in (trained(eager), torch.compile(trained(compiled), backend="eager")):
        for _ in range(3):
            step()
    assert torch.equal(eager, compiled)
