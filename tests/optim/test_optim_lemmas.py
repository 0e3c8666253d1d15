"""The paper's lemmas 1 to 3 and β = 1/(p-1), as properties of ``signed_power``."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerstep_repro.optim.functional import signed_power

# Nothing so small that its square would underflow.
NUMBERS = st.floats(-1e4, 1e4).map(lambda x: x if abs(x) > 1e-100 else 0.0)
VECTORS = st.lists(NUMBERS, min_size=1, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12).map(
    lambda pairs: torch.tensor(pairs, dtype=torch.float64).T
)
BETAS = st.floats(0.01, 1.0)
MANY = settings(max_examples=60, deadline=None)


def norm(x: torch.Tensor, p: float) -> float:
    """‖x‖_p for any p > 0 (a quasi-norm below 1)."""
    return float((x.abs() ** p).sum() ** (1 / p))


@MANY
@given(m=VECTORS, beta=BETAS)
def test_lemma_1_induced_norm(m, beta):
    """⟨m, Φ_β(m)⟩ = ‖m‖_{1+β}^{1+β}, equation (13)."""
    inner = float(m @ signed_power(m, beta))
    assert inner == pytest.approx(float((m.abs() ** (1 + beta)).sum()), rel=1e-9, abs=1e-300)


@MANY
@given(m=VECTORS, beta=BETAS)
def test_lemma_2_norm_relationship(m, beta):
    """‖Φ_β(m)‖₂² = ‖m‖_{2β}^{2β} ≤ d^{1-β}‖m‖₂^{2β}, equation (14)."""
    left = float(signed_power(m, beta).square().sum())
    assert left == pytest.approx(float((m.abs() ** (2 * beta)).sum()), rel=1e-9, abs=1e-300)
    assert left <= len(m) ** (1 - beta) * norm(m, 2) ** (2 * beta) * (1 + 1e-9)


def holder_bound(x: torch.Tensor, y: torch.Tensor, beta: float) -> tuple[float, float]:
    """Return both sides of equation (15)."""
    left = norm(signed_power(x, beta) - signed_power(y, beta), 1 + beta)
    constant = 2 ** (1 - beta) * len(x) ** ((1 - beta) / (1 + beta))
    return left, constant * norm(x - y, 1 + beta) ** beta


@MANY
@given(pair=PAIRS, beta=BETAS)
def test_lemma_3_hoelder_continuity(pair, beta):
    """‖Φ_β(x) - Φ_β(y)‖_{1+β} ≤ 2^{1-β} d^{(1-β)/(1+β)} ‖x - y‖_{1+β}^β."""
    left, right = holder_bound(pair[0], pair[1], beta)
    assert left <= right * (1 + 1e-9) + 1e-12


@MANY
@given(a=st.floats(1e-3, 1e3), d=st.integers(1, 20), beta=BETAS)
def test_lemma_3_is_tight_at_opposite_constants(a, d, beta):
    """At y = -x with equal entries both sides agree: the constant cannot be lowered."""
    x = torch.full((d,), a, dtype=torch.float64)
    left, right = holder_bound(x, -x, beta)
    assert left == pytest.approx(right, rel=1e-9)


@MANY
@given(pair=PAIRS, power=st.floats(2.0, 30.0))
def test_steepest_descent_in_the_p_norm_is_phi_of_one_over_p_minus_one(pair, power):
    """Equations (2) to (5): Φ_{1/(p-1)}(g) attains the dual norm ‖g‖_q, and nothing exceeds it."""
    g, other = pair
    if norm(g, 2) < 1e-6:
        return
    direction = signed_power(g, 1 / (power - 1))
    attained = float(g @ direction) / norm(direction, power)
    assert attained == pytest.approx(norm(g, power / (power - 1)), rel=1e-7)
    if norm(other, 2) > 1e-6:
        assert float(g @ other) / norm(other, power) <= attained * (1 + 1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_zero_is_zero_and_oddness(beta):
    """Φ_β(0) = 0 for every β, and Φ_β(-x) = -Φ_β(x)."""
    x = torch.tensor([0.0, -0.0, 1e-45, 1e-30, 0.3, 1.0, 7.0, math.inf])
    assert (signed_power(x, beta)[:2] == 0).all()
    assert torch.equal(signed_power(-x, beta), -signed_power(x, beta))
