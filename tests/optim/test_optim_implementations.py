"""The list form against the reference: the same numbers, whatever the sizes and the bundles."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerstep_repro.optim import base, batch, create, names
from powerstep_repro.optim.functional import foreach_signed_power, signed_power

OURS = [name for name in names() if name != "adamw"]
SIZES = st.lists(st.sampled_from([0, 1, 2, 31, 127, 128, 129, 300, 1025]), min_size=1, max_size=6)


@pytest.fixture
def small_bundles(monkeypatch):
    """Bundles of 300 elements, so that some hold one tensor, some many."""
    monkeypatch.setattr(batch, "CPU_BUNDLE", 300)


def run(name, sizes, steps, implementation, **hyper):
    generator = torch.Generator().manual_seed(len(sizes))
    params = [torch.nn.Parameter(torch.randn(n, generator=generator)) for n in sizes]
    optimizer = create(
        name, params, lr=0.01, weight_decay=0.1, implementation=implementation, **hyper
    )
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return params, [optimizer.state[p] for p in params if p.numel()]


def assert_same(left, right):
    for p, q in zip(left[0], right[0], strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-6)
    for a, b in zip(left[1], right[1], strict=True):
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", OURS)
def test_foreach_is_the_reference(name, small_bundles):
    @settings(max_examples=15, deadline=None)
    @given(sizes=SIZES)
    def check(sizes):
        assert_same(run(name, sizes, 4, "foreach"), run(name, sizes, 4, "reference"))

    check()


@pytest.mark.parametrize("name", [name for name in OURS if "int8" in name])
@pytest.mark.parametrize("block_size", [1, 7, 100, 200])
def test_any_block_size(name, block_size, small_bundles):
    sizes = [1, 199, 200, 201, 1000]
    left = run(name, sizes, 4, "foreach", block_size=block_size)
    assert_same(left, run(name, sizes, 4, "reference", block_size=block_size))


@pytest.mark.parametrize("implementation", ["reference", "foreach"])
@pytest.mark.parametrize("name", ["powerstep", "stacey_released", "adamw_int8"])
def test_grad_factor_is_a_multiplication_of_the_gradients(name, implementation):
    """Clipping may ride along with the step; the gradients themselves stay as they are."""
    pair = []
    for factor in (None, torch.tensor(0.5), 0.5):
        p = torch.nn.Parameter(torch.ones(300))
        optimizer = create(name, [p], lr=0.1, implementation=implementation)
        for step in range(3):
            p.grad = torch.linspace(-1, 1 + step, 300) * (0.5 if factor is None else 1)
            kept = p.grad.clone()
            optimizer.step(grad_factor=factor)
            assert torch.equal(p.grad, kept)
        pair.append(p)
    assert torch.equal(pair[0], pair[1])
    assert torch.equal(pair[0], pair[2])


@pytest.mark.parametrize("implementation", ["reference", "foreach"])
@pytest.mark.parametrize("name", OURS)
def test_scaling_without_a_fused_step(name, implementation):
    """The scale is honoured; a flag that would have to be read is refused, before any change."""
    pair = []
    for scale in (None, torch.tensor(4.0)):
        p = torch.nn.Parameter(torch.ones(300))
        optimizer = create(name, [p], lr=0.1, implementation=implementation)
        assert not optimizer._step_supports_amp_scaling
        p.grad = torch.linspace(-1, 1, 300) / (4 if scale is None else 1)
        optimizer.grad_scale = scale
        optimizer.step()
        pair.append(p)
    assert torch.equal(*pair)
    optimizer.found_inf = torch.tensor(0.0)
    with pytest.raises(ValueError, match=f"'{implementation}' takes {implementation} steps"):
        optimizer.step()
    assert torch.equal(*pair)


def test_under_torchs_scaler_without_a_fused_step():
    """There the scaler itself reads its flag."""
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = create("powerstep", [p], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    taken = []
    for factor in (torch.inf, 1.0):
        before = p.detach().clone()
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        taken.append(not torch.equal(p, before))
    assert taken == [False, True]


@pytest.mark.parametrize("name", ["powerstep", "signsgd"])
def test_two_hundred_steps_do_not_drift_apart(name):
    sizes = [257]
    assert_same(run(name, sizes, 200, "foreach"), run(name, sizes, 200, "reference"))


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_fast_power_at_every_magnitude_and_at_special_values(beta):
    """Guards the exp2/log2 form: 0, denormals, infinities and NaN as in the reference."""
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 1e-38, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([special, torch.logspace(-37, 37, 2001), -torch.logspace(-37, 37, 2001)])
    exact, (fast,) = signed_power(x, beta), foreach_signed_power([x], beta)
    plain = torch.isfinite(x) & (x != 0)
    bound = (beta * x[plain].abs().log2().abs() + 1) * 1.2e-7 * exact[plain].abs()
    assert ((fast - exact)[plain].abs() <= bound).all()
    assert torch.equal(fast[~plain].nan_to_num(7), exact[~plain].nan_to_num(7))


def test_a_nan_gradient_is_not_survived():
    """|NaN|^β is NaN for β > 0 (though sign(NaN) is 0, so that β = 0 must be watched outside)."""
    for implementation in ("reference", "foreach"):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = create("powerstep", [p], implementation=implementation)
        p.grad = torch.tensor([1.0, torch.nan, 1.0])
        optimizer.step()
        assert p.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("name", ["powerstep", "powerstep_int8", "adams_released"])
def test_several_devices_or_dtypes_in_one_group(name):
    """Batches are by device and arithmetic: each must be stepped once, with its own clock."""
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32]
    params = [torch.nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in dtypes]
    optimizer = create(name, params, lr=0.125)
    for _ in range(3):
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    for p in params[1:]:
        torch.testing.assert_close(p.float(), params[0].float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["powerstep", "powerstep_int8", "adams_released"])
def test_fused_is_refused_where_it_is_no_kernel(name, monkeypatch):
    """At construction, and with what to do instead. (Tests interpret kernels on a CPU.)"""
    monkeypatch.setattr(base.fused, "available", lambda *_: False)
    cls = type(create(name, [torch.nn.Parameter(torch.ones(1))])).__name__
    sentence = f"'fused' is a kernel for GPUs, and not available for {cls}.* on cpu; use auto"
    with pytest.raises(ValueError, match=sentence):
        create(name, [torch.nn.Parameter(torch.ones(1))], implementation="fused")
