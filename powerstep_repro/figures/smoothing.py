"""Smoothing of logged curves, in tokens rather than in rows."""

import itertools

import numpy as np

#: Beyond this many time constants a term has lost 200 decimal digits; blocks stay within it.
_BLOCK = 400.0


def smooth(tokens: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """Return a causal exponential average over tokens, without the bias of a zero start.

    The weight of a value decays as ``exp(-(tokens since) / scale)`` and is proportional to the
    tokens it stands for, so that a run logged every step and one logged every ten have the same
    smoothing and can be drawn together. The weights seen so far are normalised to one: the first
    point is the first value, and the last is not held back. Non-finite values weigh nothing.

    Args:
        tokens: (k,) tokens seen at each row, ascending.
        values: (k,) the logged values.
        scale: the time constant, in tokens.

    Returns:
        (k,) the average; NaN before the first finite value.
    """
    tokens = np.asarray(tokens, dtype=float)
    values = np.asarray(values, dtype=float)
    if not len(tokens):
        return values
    gaps = np.diff(tokens, prepend=0.0) / scale
    good = np.isfinite(values)
    weights = np.where(good, -np.expm1(-gaps), 0.0)
    terms = weights * np.where(good, values, 0.0)
    # sum_j w_j x_j exp(t_j - t_i) by running sums of w_j x_j exp(t_j - t_0), in blocks whose
    # exponents cannot overflow; each block starts from what the one before left.
    time = tokens / scale
    top, bottom = np.empty_like(terms), np.empty_like(weights)
    carry_top = carry_bottom = 0.0
    start = 0
    while start < len(time):
        origin = time[start - 1] if start else 0.0
        stop = max(int(np.searchsorted(time, origin + _BLOCK, side="right")), start + 1)
        span = np.minimum(time[start:stop] - origin, _BLOCK)
        growth = np.exp(span)
        top[start:stop] = (carry_top + np.cumsum(terms[start:stop] * growth)) / growth
        bottom[start:stop] = (carry_bottom + np.cumsum(weights[start:stop] * growth)) / growth
        carry_top, carry_bottom = top[stop - 1], bottom[stop - 1]
        start = stop
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0)


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
