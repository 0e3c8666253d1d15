"""Guards the smoothing: no lag, no bias at either end, the same for any log interval."""

import numpy as np
import pytest

from powerstep_repro.evidence.smoothing import envelope, smooth


def _by_fit(tokens, values, scale):
    """A weighted least-squares line around every row, row by row."""
    gaps = np.diff(tokens) / scale
    before, after = np.append(gaps[0], gaps), np.append(gaps, gaps[-1])
    stands_for = 2 - np.exp(-before) - np.exp(-after)
    good = np.isfinite(values)
    out = []
    for t in tokens:
        away = (tokens - t) / scale
        root = np.sqrt(stands_for * np.exp(-np.abs(away)))[good]
        columns = np.stack([np.ones(len(away)), away], axis=1)[good]
        out.append(np.linalg.lstsq(columns * root[:, None], values[good] * root)[0][0])
    return np.array(out)


@pytest.mark.parametrize("scale", [40.0, 300.0, 1e4])
def test_equals_a_weighted_least_squares_line(scale):
    """With rows missing and, at the smallest scale, several blocks."""
    rng = np.random.default_rng(0)
    tokens = np.cumsum(rng.integers(1, 40, 700)).astype(float)
    values = rng.normal(3.0, 1.0, 700)
    values[[0, 5, 300]] = np.nan
    np.testing.assert_allclose(
        smooth(tokens, values, scale), _by_fit(tokens, values, scale), atol=2e-5
    )


@pytest.mark.parametrize("scale", [640.0, 64.0, 6.4, 1e9])
def test_a_constant_stays(scale):
    np.testing.assert_allclose(smooth(np.arange(1, 101) * 64.0, np.full(100, 2.5), scale), 2.5)


def test_a_slope_is_followed_without_lag_to_both_ends():
    tokens = np.arange(1, 1501) * 120.0 * 1024
    values = 9 - 5 * tokens / tokens[-1]
    curve = smooth(tokens, values, 0.01 * tokens[-1])
    np.testing.assert_allclose(curve, values, atol=1e-5)


def test_a_loss_curve_is_followed_to_a_part_of_the_parity_margin():
    """A power law under noise, as losses are: the line lies on it, not above it."""
    tokens = np.arange(1, 1501) * 120.0 * 1024
    truth = 3 + 2.2 * (tokens / 4e7) ** -0.4
    noise = np.random.default_rng(0).normal(0, 0.04, len(tokens))
    off = (smooth(tokens, truth + noise, 0.01 * tokens[-1]) - truth)[tokens > 2e7]
    assert abs(off.mean()) < 0.002
    assert np.abs(off).max() < 0.028


def test_a_step_is_halfway_at_its_place_and_gone_beyond_the_scale():
    tokens = np.arange(1, 100_001) * 1.0
    values = np.where(tokens <= 50_000, 4.0, 2.0)
    curve = smooth(tokens, values, 1000.0)
    assert curve[49_999:50_001].mean() == pytest.approx(3.0, abs=1e-3)
    assert curve[50_999] == pytest.approx(2 + 1 / np.e, abs=2e-3)
    assert curve[[0, -1]] == pytest.approx([4.0, 2.0], abs=1e-9)


def test_log_interval_does_not_change_the_curve():
    tokens = np.arange(1, 20_001) * 8.0
    values = 3 + 2 * np.exp(-tokens / 40_000)
    every, tenth = smooth(tokens, values, 4000.0), smooth(tokens[9::10], values[9::10], 4000.0)
    np.testing.assert_allclose(every[9::10], tenth, atol=0.001)


def test_a_far_gap_in_the_log_does_not_overflow():
    curve = smooth(np.array([1.0, 2.0, 1e9, 1e9 + 1]), np.array([5.0, 5.0, 3.0, 3.0]), 1.0)
    assert np.isfinite(curve).all()
    assert curve[-1] == pytest.approx(3.0)


def test_one_row_and_two_close_ones_are_themselves():
    assert smooth(np.array([8.0]), np.array([4.0]), 1e3) == pytest.approx([4.0])
    two = smooth(np.array([8.0, 8.1]), np.array([4.0, 5.0]), 1e3)
    assert two == pytest.approx([4.5, 4.5], abs=0.01)


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
