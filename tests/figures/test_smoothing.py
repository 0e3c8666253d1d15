"""Guards the smoothing: no bias at the start, no lost end, the same for any log interval."""

import numpy as np
import pytest

from powerstep_repro.figures.smoothing import envelope, smooth


def _by_loop(tokens, values, scale):
    top = bottom = 0.0
    last = 0.0
    out = []
    for t, v in zip(tokens, values, strict=True):
        decay = np.exp(-(t - last) / scale)
        top, bottom, last = top * decay, bottom * decay, t
        if np.isfinite(v):
            top, bottom = top + (1 - decay) * v, bottom + (1 - decay)
        out.append(top / bottom if bottom else np.nan)
    return np.array(out)


@pytest.mark.parametrize("scale", [0.5, 7.0, 300.0, 1e6])
def test_equals_the_recursion(scale):
    rng = np.random.default_rng(0)
    tokens = np.cumsum(rng.integers(1, 40, 700)).astype(float)
    values = rng.normal(3.0, 1.0, 700)
    values[[0, 5, 300]] = np.nan
    np.testing.assert_allclose(
        smooth(tokens, values, scale), _by_loop(tokens, values, scale), rtol=1e-9
    )


def test_a_constant_stays_and_the_first_point_is_the_first_value():
    tokens = np.arange(1, 101) * 64.0
    np.testing.assert_allclose(smooth(tokens, np.full(100, 2.5), 640.0), 2.5)
    assert smooth(tokens, np.linspace(9, 1, 100), 640.0)[0] == pytest.approx(9.0)


def test_a_step_is_followed_with_the_time_constant():
    tokens = np.arange(1, 100_001) * 1.0
    values = np.where(tokens <= 50_000, 4.0, 2.0)
    curve = smooth(tokens, values, 1000.0)
    assert curve[50_999] == pytest.approx(2 + 2 / np.e, abs=1e-3)
    assert curve[-1] == pytest.approx(2.0, abs=1e-9)


def test_log_interval_does_not_change_the_curve():
    tokens = np.arange(1, 20_001) * 8.0
    values = 3 + 2 * np.exp(-tokens / 40_000)
    every, tenth = smooth(tokens, values, 4000.0), smooth(tokens[9::10], values[9::10], 4000.0)
    np.testing.assert_allclose(every[9::10], tenth, atol=0.003)


def test_a_far_gap_in_the_log_does_not_overflow():
    curve = smooth(np.array([1.0, 2.0, 1e9, 1e9 + 1]), np.array([5.0, 5.0, 3.0, 3.0]), 1.0)
    assert np.isfinite(curve).all()
    assert curve[-1] == pytest.approx(3.0)


def test_empty_and_all_missing():
    assert len(smooth(np.array([]), np.array([]), 1.0)) == 0
    assert np.isnan(smooth(np.array([1.0, 2.0]), np.array([np.nan, np.inf]), 1.0)).all()


def test_thinning_keeps_spikes_and_ends():
    x = np.arange(50_000.0)
    y = np.sin(x / 5000)
    y[31_234] = 50.0
    thin_x, thin_y = envelope(x, y, 1000)
    assert len(thin_x) <= 1002
    assert thin_y.max() == 50.0
    assert thin_x[0] == 0
    assert thin_x[-1] == 49_999
    assert (np.diff(thin_x) > 0).all()
