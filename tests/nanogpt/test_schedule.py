"""Guards the learning-rate schedule, its edges above all."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanogpt.schedule import learning_rate


def rates(steps, warmup, ratio=0.1, peak=1.0):
    options = {"peak": peak, "steps": steps, "warmup_steps": warmup, "min_ratio": ratio}
    return [learning_rate(step, **options) for step in range(1, steps + 1)]


def test_values_by_hand():
    expected = [1 / 3, 2 / 3, 1.0, 0.1 + 0.9 * 0.75, 0.1 + 0.9 * 0.25, 0.1]
    assert rates(6, 2) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("steps", "warmup", "expected"),
    [
        (3, 0, [1.0, 0.55, 0.1]),  # no warm-up starts at the peak
        (1, 0, [1.0]),
        (2, 0, [1.0, 0.1]),
        (3, 2, [1 / 3, 2 / 3, 1.0]),  # nothing left to decay in
        (2, 5, [1 / 6, 2 / 6]),  # warm-up longer than the run
        (1, 1, [0.5]),
    ],
)
def test_edges(steps, warmup, expected):
    assert rates(steps, warmup) == pytest.approx(expected)


@given(st.integers(1, 200), st.integers(0, 250), st.floats(0, 1))
def test_shape(steps, warmup, ratio):
    values = rates(steps, warmup, ratio)
    assert all(0 < v <= 1 or (v == 0 and ratio == 0) for v in values)
    rise, fall = values[: warmup + 1], values[warmup:]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    if steps > warmup + 1:
        assert values[warmup] == 1.0
        assert values[-1] == pytest.approx(ratio, abs=1e-12)


def test_scales_with_the_peak():
    assert rates(50, 7, peak=6e-4) == pytest.approx([6e-4 * r for r in rates(50, 7)])
    assert math.isclose(rates(50, 7, ratio=0.0)[-1], 0.0, abs_tol=1e-15)
