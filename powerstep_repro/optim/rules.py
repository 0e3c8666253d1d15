"""What a hyperparameter may be, said once: each rule checks a value and returns its plain form.

The plain form (``float``, ``int``, ``tuple``) is what lands in ``param_groups``, so that a
checkpoint holds neither numpy scalars nor a config library's lists.
"""

import difflib
import math
import numbers
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# How far below 0 a learning rate may be: a step of that size changes no float32 weight.
ROUNDING = 1e-12

# From where on difflib calls two names close: "bta" is (0.86) to "beta", "meta" is not (0.75).
CLOSE = 0.85


def _number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def refuse_misspelt(keys: Iterable[str], known: Collection[str], owner: str) -> None:
    """Refuse keys close to a known name; "lr_scale" or "decay" is a name of the user's own.

    Raises:
        ValueError: One is close: a letter too many, too few or wrong, or of the other case.
    """
    for key in keys:
        near = difflib.get_close_matches(str(key).lower(), known, n=1, cutoff=CLOSE)
        if key not in known and near and f"_{near[0]}_" not in f"_{key}_":
            raise ValueError(
                f"{owner} has no hyperparameter {key!r}; did you mean {near[0]!r}? "
                f"allowed: {', '.join(known)}"
            )


class Interval:
    """A real number in an interval written as in mathematics, e.g. ``Interval("[0, 1)")``."""

    def __init__(self, text: str):
        self.text = text
        low, high = text[1:-1].split(",")
        self.low, self.high = float(low), float(high)

    def __call__(self, name: str, value: Any) -> float:
        """Return ``value`` as a float; ValueError if it lies outside."""
        if _number(value) and math.isfinite(value):
            above = value >= self.low if self.text[0] == "[" else value > self.low
            below = value <= self.high if self.text[-1] == "]" else value < self.high
            if above and below:
                return float(value)
        raise ValueError(f"{name} must be a number in {self.text}, not {value!r}")


class LearningRate(Interval):
    """A number >= 0, or a tensor of one, which stays one; on a device it is not read (a sync)."""

    def __init__(self):
        super().__init__("[0, inf)")

    def __call__(self, name: str, value: Any) -> float | Tensor:
        """Return the rate, a tensor untouched; ValueError if it cannot be one."""
        if not isinstance(value, Tensor):
            # A schedule down to 0 may miss it: torch's LinearLR ends at up to -5e-17.
            missed = _number(value) and -ROUNDING < value < 0
            return float(value) if missed else super().__call__(name, value)
        if value.numel() != 1:
            raise ValueError(f"{name} must be a number or a one-element tensor, not {value.shape}")
        if value.device.type == "cpu":
            self(name, value.item())
        return value


@dataclass(frozen=True)
class Pair:
    """Two values under the same rule, as ``betas``; any sequence comes back as a tuple."""

    rule: Interval

    def __call__(self, name: str, value: Any) -> tuple[float, float]:
        """Return the two as floats; ValueError if they are not two or lie outside."""
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
            raise ValueError(f"{name} must be two numbers in {self.rule.text}, not {value!r}")
        first, second = (self.rule(f"{name}[{i}]", item) for i, item in enumerate(value))
        return first, second


@dataclass(frozen=True)
class Choice:
    """One of a few words (or None, where that is listed)."""

    allowed: tuple[str | None, ...]

    def __call__(self, name: str, value: Any) -> str | None:
        """Return ``value``; ValueError if it is not on the list."""
        if value not in self.allowed:
            listed = ", ".join(map(str, self.allowed))
            raise ValueError(f"{name} must be one of {listed}, not {value!r}")
        return value


class PositiveInt:
    """A whole number >= 1."""

    def __call__(self, name: str, value: Any) -> int:
        """Return ``value`` as an int; ValueError if it is not a whole number >= 1."""
        if not (_number(value) and math.isfinite(value) and value == int(value) >= 1):
            raise ValueError(f"{name} must be a whole number >= 1, not {value!r}")
        return int(value)
