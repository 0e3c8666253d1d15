"""Relations between the optimizers that the paper states or that follow from their equations."""

import math

import pytest
import torch

from powerstep_repro.optim import PowerStep, create
from powerstep_repro.optim.quantize import block_code, dequantize, quantize, zero_blocks

IMPLEMENTATIONS = ["reference", "foreach", "auto"]


def gradients(steps: int = 20, n: int = 257, seed: int = 0) -> torch.Tensor:
    rows = torch.randn(steps, n, generator=torch.Generator().manual_seed(seed))
    rows[:, ::50] = 0
    rows[3] = 0
    return rows


def final(make, rows: torch.Tensor, **hyper) -> torch.Tensor:
    """Return θ after all steps of ``make`` (a name, or a class) from ones."""
    p = torch.nn.Parameter(torch.ones(rows.shape[1]))
    optimizer = create(make, [p], **hyper) if isinstance(make, str) else make([p], **hyper)
    for row in rows:
        p.grad = row.clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_beta_zero_is_signsgd_bit_for_bit(implementation):
    """Guards 0**0 = 1 and exp2(0·log2(0)) = NaN."""
    common = {"lr": 0.01, "weight_decay": 0.1, "gamma": 0.9, "implementation": implementation}
    rows = gradients()
    assert torch.equal(
        final("powerstep", rows, beta=0.0, **common), final("signsgd", rows, **common)
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_beta_one_is_heavy_ball_sgd(implementation):
    """Guards the exact end of the transform against torch's own momentum SGD."""
    rows = gradients()
    ours = final(PowerStep, rows, lr=0.01, gamma=0.9, beta=1.0, implementation=implementation)
    torch.testing.assert_close(ours, final(torch.optim.SGD, rows, lr=0.01, momentum=0.9))


def test_gamma_zero_is_powerball():
    """Powerball steps along Φ_β of the raw gradient."""
    rows = gradients()
    theta = torch.ones(rows.shape[1])
    for g in rows:
        theta = theta - 0.01 * g.sign() * g.abs() ** 0.3
    torch.testing.assert_close(final("powerstep", rows, lr=0.01, gamma=0.0, beta=0.3), theta)


def test_heavy_ball_is_an_ema_at_1_259_times_the_rate():
    """m = EMA/(1-γ), so Φ_β(m) = (1-γ)^(-β)·Φ_β(EMA): the buffers differ in nothing else."""
    rows, gamma, beta, lr, decay = gradients(steps=60), 0.9, 0.1, 0.01, 0.1
    factor = (1 - gamma) ** -beta
    assert factor == pytest.approx(1.259, abs=5e-4)
    theta, ema = torch.ones(rows.shape[1]), torch.zeros(rows.shape[1])
    for g in rows:
        ema = gamma * ema + (1 - gamma) * g
        theta = theta - factor * lr * ema.sign() * ema.abs() ** beta - lr * decay * theta
    ours = final("powerstep", rows, lr=lr, gamma=gamma, beta=beta, weight_decay=decay)
    torch.testing.assert_close(ours, theta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("code_name", ["linear", "dynamic"])
@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_int8_heavy_ball_holds_the_codes_of_an_int8_ema(code_name, gamma):
    """Absmax codes are scale-equivariant: the paper's "layer 4" makes no difference in the codes.

    At γ = 0.5 the scale is a power of two and every code is the same. At 0.9 a code may differ
    where rounding decides a tie, and then for the few steps until the difference has faded.
    """
    code, n, steps = block_code(code_name), 128 * 100, 50
    generator = torch.Generator().manual_seed(0)
    heavy = ema = zero_blocks(torch.zeros(n), code, 128)
    apart = 0
    for _ in range(steps):
        g = torch.randn(n, generator=generator)
        heavy = quantize(dequantize(*heavy, code).mul_(gamma).add_(g), code)
        ema = quantize(dequantize(*ema, code).mul_(gamma).add_(g, alpha=1 - gamma), code)
        apart += int((heavy[0] != ema[0]).sum())
        gap = dequantize(*heavy, code).mul_(1 - gamma) - dequantize(*ema, code)
        assert (gap.abs() <= 0.0145 * ema[1].repeat_interleave(128)).all()  # one code's width
    assert apart <= (0 if gamma == 0.5 else 1e-4 * n * steps), f"{apart} codes of {n * steps}"


@pytest.mark.parametrize("name", ["powerstep", "pbsgdm"])
@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_a_scaled_loss_scales_the_update_by_its_power(name, beta):
    """Neither scale-invariant as Adam nor linear as SGD: c becomes c^β."""
    rows, c = gradients(), 32.0
    plain = final(name, rows, lr=0.01, beta=beta) - 1
    scaled = final(name, c * rows, lr=0.01 * c**-beta, beta=beta) - 1
    torch.testing.assert_close(scaled, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_adamw_is_torchs(implementation):
    """The baseline is nobody's rewrite."""
    rows, hyper = gradients(), {"lr": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8}
    ours = final("adamw", rows, implementation=implementation, **hyper)
    assert torch.equal(ours, final(torch.optim.AdamW, rows, **hyper))
    optimizer = create("adamw", [torch.nn.Parameter(torch.ones(1))])
    assert type(optimizer) is torch.optim.AdamW


def test_pbsgdm_released_decays_as_if_lambda_were_ten_times_larger():
    """Decay in the momentum: without gradients θ shrinks at λ/(1-γ), not at λ."""
    rows = torch.zeros(400, 1)
    hyper = {"lr": 0.01, "weight_decay": 0.1, "gamma": 0.9}
    rate = -math.log(float(final("pbsgdm", rows, **hyper))) / 4
    released = -math.log(float(final("pbsgdm_released", rows, **hyper))) / 4
    assert rate == pytest.approx(0.1, rel=0.01)
    assert released == pytest.approx(1.0, rel=0.1)


def test_stacey_released_ascends():
    """Its dual term enters with the sign that climbs x²/2; Stacey's own descends."""
    at = {}
    for name in ("stacey", "stacey_released"):
        x = torch.nn.Parameter(torch.ones(()))
        optimizer = create(name, [x], lr=0.01, tau=1.0)
        for _ in range(200):
            x.grad = x.detach().clone()
            optimizer.step()
        at[name] = x.item()
    assert at["stacey_released"] == pytest.approx(22.4, rel=0.02)
    assert abs(at["stacey"]) < 0.5


def test_stacey_without_its_dual_term_is_powerstep_on_an_ema():
    """τ = 0 and β1 = β2 leave Φ_β of an average, β = 1/(p-1), but for ε."""
    rows = gradients()
    stacey = final("stacey", rows, lr=0.01, power=11, tau=0.0, betas=(0.9, 0.9), eps=1e-12)
    powerstep = final("powerstep", rows, lr=0.01 * 0.1**0.1, gamma=0.9, beta=0.1)
    torch.testing.assert_close(stacey, powerstep, rtol=1e-4, atol=1e-5)
