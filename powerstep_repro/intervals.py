"""Intervals as mathematics writes them, read alike for optimizers and configs."""


def contains(interval: str, number: float) -> bool:
    """Return whether a number lies in an interval such as ``"[0, 1)"``; NaN lies in none."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    return above and below
