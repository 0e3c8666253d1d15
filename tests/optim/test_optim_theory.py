"""A counterexample to the paper's convergence theorem, within its assumptions.

f(θ) = √(1 + θ²) is smooth, bounded below, with |f'| < 1; the noise is K with probability
1/(K + 1) and -1 otherwise: unbiased, of bounded variance. η_t = 0.3/√t as the theorem has it.
PowerStep at β = 0.1 sees the sign of the frequent small noise and walks away, |f'|² → 1; with
β = 1, or symmetric noise, it falls as it should.
"""

import math

import pytest
import torch

from powerstep_repro.optim import PowerStep


def squared_gradient(beta: float, gamma: float, k: float | None, steps: int) -> float:
    """Return the mean of f'(θ)² over 128 independent runs; symmetric noise if ``k`` is None."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.nn.Parameter(torch.ones(128))
    optimizer = PowerStep([theta], lr=0.3, beta=beta, gamma=gamma)
    for t in range(1, steps + 1):
        gradient = theta.detach() / (1 + theta.detach() ** 2).sqrt()
        if k is None:
            noise = torch.randn(128, generator=generator) * math.sqrt(10)
        else:
            rare = torch.rand(128, generator=generator) < 1 / (k + 1)
            noise = torch.where(rare, k, -1.0)
        theta.grad = gradient + noise
        optimizer.param_groups[0]["lr"] = 0.3 / math.sqrt(t)
        optimizer.step()
    return float((theta.detach() ** 2 / (1 + theta.detach() ** 2)).mean())


@pytest.mark.parametrize(("gamma", "k", "at_least"), [(0.0, 10.0, 0.98), (0.9, 100.0, 0.8)])
def test_skewed_noise_drives_it_away(gamma, k, at_least):
    start = 0.5  # f'(1)²
    assert squared_gradient(0.1, gamma, k, steps=1000) > at_least > start


def test_heavy_ball_sgd_and_symmetric_noise_converge():
    assert squared_gradient(1.0, 0.0, 10.0, steps=1000) < 0.1
    assert squared_gradient(0.1, 0.0, None, steps=1000) < 0.1
