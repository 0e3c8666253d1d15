"""How numbers are written where people read them."""

#: What stands where there is nothing to say: never a blank. pandas reads it as missing.
NOTHING = "n/a"
#: What stands in the verdict's place where the profile is too small for one.
NO_VERDICT = "no verdict"


def signed(value: float | None, digits: int = 3) -> str:
    """Write a difference with its sign; one that rounds to nothing has none."""
    if value is None:
        return NOTHING
    rounded = round(value, digits) + 0.0
    return f"{rounded:+.{digits}f}" if rounded else f"{rounded:.{digits}f}"
