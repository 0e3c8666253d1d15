"""Smoothing of logged curves, in tokens rather than in rows."""

import itertools

import numpy as np

# Rows are smoothed in blocks of so many scales, each with the rows within reach on either side:
# a weight beyond that is lost in rounding, and no exponent can overflow.
_BLOCK, _REACH = 200.0, 40.0
# Where the rows in reach are too close together to have a slope, their mean is the fit.
_RIDGE = 1e-6


def smooth(tokens: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """Return the local straight line's value at each row: an average that does not lag.

    At each row a line is fitted to the rows on both sides, weighted by
    ``exp(-(tokens away) / scale)`` and by the tokens that a row stands for, so that a run logged
    every step and one logged every ten have the same smoothing and can be drawn together. An
    average of the past alone lies above a falling curve by the slope times the scale; this one
    follows a straight line exactly, at the ends too, and loses no row there. Non-finite values
    weigh nothing.

    Args:
        tokens: (k,) tokens seen at each row, ascending.
        values: (k,) the logged values.
        scale: the tokens within which a weight falls by e.

    Returns:
        (k,) the fit; NaN where no finite value is in reach.
    """
    time = np.asarray(tokens, dtype=float) / scale
    values = np.asarray(values, dtype=float)
    good = np.isfinite(values)
    out = np.full(len(time), np.nan)
    if not good.any():
        return out
    gaps = np.diff(time) if len(time) > 1 else np.ones(1)
    before, after = np.append(gaps[:1], gaps)[: len(time)], np.append(gaps, gaps[-1:])[: len(time)]
    weights = np.where(good, -np.expm1(-before) - np.expm1(-after), 0.0)
    middle = np.median(values[good])
    centred = np.where(good, values - middle, 0.0)
    start = 0
    while start < len(time):
        stop = int(np.searchsorted(time, time[start] + _BLOCK, side="right"))
        low = int(np.searchsorted(time, time[start] - _REACH))
        high = int(np.searchsorted(time, time[stop - 1] + _REACH, side="right"))
        fitted = _fit(time[low:high], weights[low:high], centred[low:high])
        out[start:stop] = middle + fitted[start - low : stop - low]
        start = stop
    return out


def _fit(time: np.ndarray, weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Fit a weighted line around every row; time in scales. All arrays (k,)."""
    past = _moments(time - time[0], weights, values)
    future = [m[::-1] for m in _moments((time[-1] - time)[::-1], weights[::-1], values[::-1])]
    # Both sides hold the row itself, at distance zero.
    s0, s1, s2 = past[0] + future[0] - weights, future[1] - past[1], past[2] + future[2]
    y0, y1 = past[3] + future[3] - weights * values, future[4] - past[4]
    s2 = s2 + _RIDGE * s0
    bottom = s0 * s2 - s1**2
    return np.divide(y0 * s2 - y1 * s1, bottom, out=np.full_like(s0, np.nan), where=bottom > 0)


def _moments(time: np.ndarray, weights: np.ndarray, values: np.ndarray) -> list[np.ndarray]:
    """Sum over each row and those before it, weighted by ``exp(-distance)``.

    Returns:
        Sums of 1, distance, distance², value and distance × value; each (k,).
    """
    growth = np.exp(time)
    grown = weights * growth
    terms = [grown, grown * time, grown * time**2, grown * values, grown * time * values]
    one, t, tt, y, ty = (np.cumsum(term) / growth for term in terms)
    return [one, time * one - t, tt - 2 * time * t + time**2 * one, y, time * y - ty]


def envelope(x: np.ndarray, y: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Thin a curve for drawing without losing a spike: lowest and highest value of each stretch.

    Args:
        x: (k,) ascending.
        y: (k,) finite values.
        points: about how many points may stay.

    Returns:
        x and y of at most ``points`` rows, the ends among them; unchanged if short already.
    """
    if len(x) <= points:
        return x, y
    edges = np.linspace(0, len(x), points // 2, dtype=int)
    keep = {0, len(x) - 1}
    for low, high in itertools.pairwise(edges):
        part = y[low:high]
        keep.update((low + int(part.argmin()), low + int(part.argmax())))
    rows = np.array(sorted(keep))
    return x[rows], y[rows]
