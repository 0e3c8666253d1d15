"""A fused step that a flag on the device leaves out: torch's convention for gradient scaling.

Guards: a step left out changes no bit, counters included; scaling is a factor of the gradients;
``torch.amp.GradScaler`` drives it; only who honours the flag says so; no wait for the device.
"""

import copy

import pytest
import torch
from fused_kit import (
    CASES,
    flat,
    params,
    random_grads,
    random_tensors,
    set_grads,
    state,
    state_names,
    twins,
)

from powerstep_repro.optim import create

every_case = pytest.mark.parametrize("case", CASES)
SHAPES = [(129,), (7, 30), (4099,)]
STRIDED = (6, 5)  # takes its step in a copy


def fused(case, tensors):
    name, hyper = CASES[case]
    return twins(name, tensors, **hyper)[1]


def step(optimizer, grads, found=None, scale=None, **options):
    """Take a step under the flags, as torch's scaler does."""
    set_grads([optimizer], grads)
    device = params(optimizer)[0].device
    if found is not None:
        optimizer.found_inf = torch.tensor(found, device=device)
    if scale is not None:
        optimizer.grad_scale = torch.tensor(scale, device=device)
    optimizer.step(**options)
    for name in ("found_inf", "grad_scale"):
        optimizer.__dict__.pop(name, None)


def bits(optimizer):
    """Parameters and all state, counters included."""
    everything = [*params(optimizer)]
    for p in params(optimizer):
        everything += optimizer.state[p].values()
    return [t.detach().clone().contiguous().reshape(-1).view(torch.uint8) for t in everything]


def assert_equal(a, b):
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@every_case
@pytest.mark.parametrize("found", [1.0, 2.0])  # a scaler adds up the devices' flags
def test_a_step_left_out_changes_no_bit(device, case, found):
    tensors = random_tensors(device, SHAPES)
    tensors.append(torch.randn(STRIDED, device=device).t())
    optimizer, plain = (fused(case, tensors) for _ in range(2))
    grads = [random_grads(tensors, seed) for seed in range(3)]
    grads[1][0][5] = torch.inf
    for o in (optimizer, plain):
        step(o, grads[0])
    before = bits(optimizer)
    step(optimizer, grads[1], found=found, scale=4.0)
    assert_equal(bits(optimizer), before)
    # And the next one is as if nothing had been between.
    step(optimizer, grads[2], found=0.0)
    step(plain, grads[2])
    assert_equal(bits(optimizer), bits(plain))


@every_case
def test_a_first_step_left_out_leaves_fresh_state(device, case):
    tensors = random_tensors(device, SHAPES)
    optimizer = fused(case, tensors)
    step(optimizer, random_grads(tensors), found=1.0)
    assert all(torch.equal(p, t) for p, t in zip(params(optimizer), tensors, strict=True))
    group = optimizer.param_groups[0]
    for p in params(optimizer):
        for name, fresh in optimizer.init_state(p, group).items():
            assert torch.equal(optimizer.state[p][name], fresh), name


@every_case
def test_the_scale_is_a_factor_of_the_gradients(device, case):
    """Powers of two are exact; with a factor of the caller's own, both count."""
    tensors = random_tensors(device, SHAPES)
    plain, scaled, both = (fused(case, tensors) for _ in range(3))
    for seed in range(2):
        grads = random_grads(tensors, seed)
        step(plain, grads, grad_factor=torch.tensor(0.125, device=device))
        step(scaled, grads, found=0.0, scale=8.0)
        step(both, grads, scale=4.0, grad_factor=torch.tensor(0.5, device=device))
    assert_equal(bits(scaled), bits(plain))
    assert_equal(bits(both), bits(plain))


@pytest.mark.parametrize("case", ["powerstep", "int8 dynamic", "adamw mixed"])
def test_under_torchs_scaler(device, case):
    """An overflow leaves the step out and halves the scale; the next one is taken."""
    tensors = random_tensors(device, [(129,)])
    optimizer = fused(case, tensors)
    (p,) = params(optimizer)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    before, loss_factors = flat([p]), [1.0, torch.inf, 1.0]
    taken, scales = [], []
    for factor in loss_factors:
        optimizer.zero_grad()
        scaler.scale((p * factor).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        taken.append(not torch.equal(flat([p]), before))
        scales.append(scaler.get_scale())
        before = flat([p])
    assert taken == [True, False, True]
    assert scales == [8.0, 4.0, 4.0]
    assert not hasattr(optimizer, "found_inf")
    reference = fused(case, tensors)
    for _ in range(2):
        step(reference, [2 * q.detach() for q in params(reference)])
    assert torch.equal(flat([p]), flat(params(reference)))
    for name in state_names(reference):
        assert torch.equal(state(optimizer, name), state(reference, name)), name


def test_who_says_to_honour_the_flag(device):
    """As long as every parameter gets fused steps, also after groups and states were added."""
    tensors = random_tensors(device, [(129,), (7, 30)])
    reference, optimizer = twins("powerstep", tensors)
    assert optimizer._step_supports_amp_scaling
    assert not reference._step_supports_amp_scaling
    assert not twins("powerstep_int8", tensors)[0]._step_supports_amp_scaling
    step(reference, random_grads(tensors))
    optimizer.load_state_dict(reference.state_dict())
    assert optimizer._step_supports_amp_scaling
    assert copy.deepcopy(optimizer)._step_supports_amp_scaling
    more = torch.nn.Parameter(torch.ones(3, device=device))
    optimizer.add_param_group({"params": [more], "implementation": "foreach"})
    assert not optimizer._step_supports_amp_scaling
    double = torch.nn.Parameter(torch.ones(3, device=device, dtype=torch.float64))
    assert not create("powerstep", [more, double])._step_supports_amp_scaling


def test_a_mixed_optimizer_refuses_the_flag_as_a_whole(device):
    """Guards a step of which the fused part is left out and the rest is not."""
    a, b = (torch.nn.Parameter(torch.ones(3, device=device)) for _ in range(2))
    groups = [{"params": [a]}, {"params": [b], "implementation": "foreach"}]
    optimizer = create("powerstep", groups, implementation="fused")
    with pytest.raises(ValueError, match="found_inf is set, but PowerStep with implementation="):
        step(optimizer, [torch.ones(3, device=device)] * 2, found=0.0)
    assert torch.equal(a, torch.ones_like(a))
    assert not optimizer.state


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_case
def test_no_sync(device, case):
    tensors = random_tensors(device, SHAPES)
    optimizer = fused(case, tensors)
    for found in (0.0, 1.0):
        step(optimizer, random_grads(tensors), found=found, scale=2.0)
    set_grads([optimizer], random_grads(tensors, 1))
    optimizer.found_inf = torch.tensor(1.0, device=device)
    optimizer.grad_scale = torch.tensor(2.0, device=device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert optimizer._step_supports_amp_scaling
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
