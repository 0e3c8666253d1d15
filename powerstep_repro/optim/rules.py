"""What a hyperparameter may be, said once: each rule checks a value and returns its plain form.

The plain form (``float``, ``int``, ``tuple``) is what lands in ``param_groups``, so that a
checkpoint holds neither numpy scalars nor a config library's lists.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from powerstep_repro.intervals import contains

# A rule takes a hyperparameter's name and value.
Rule = Callable[[str, Any], Any]


def _real(value: Any) -> float:
    """Return a real number as a float, NaN for what is none."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if real else math.nan


class Interval:
    """A real number in an interval written as in mathematics, e.g. ``Interval("[0, 1)")``."""

    def __init__(self, text: str):
        self.text = text

    def __call__(self, name: str, value: Any) -> float:
        """Return ``value`` as a float; ValueError if it lies outside."""
        number = _real(value)
        if contains(self.text, number):
            return number
        raise ValueError(f"{name} must be a number in {self.text}, not {value!r}")


class LearningRate(Interval):
    """A number >= 0, or a tensor of one, which stays one; on a device it is not read (a sync)."""

    def __init__(self) -> None:
        super().__init__("[0, inf)")

    def __call__(self, name: str, value: Any) -> Any:
        """Return the rate, a tensor untouched; ValueError if it cannot be one."""
        if not isinstance(value, Tensor):
            return super().__call__(name, value)
        if value.numel() != 1:
            raise ValueError(f"{name} must be a number or a one-element tensor, not {value.shape}")
        if value.device.type == "cpu":
            super().__call__(name, value.item())
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
    """One of a few values."""

    allowed: tuple[Any, ...]

    def __call__(self, name: str, value: Any) -> Any:
        """Return ``value``; ValueError if it is not on the list."""
        if value not in self.allowed:
            listed = ", ".join(map(str, self.allowed))
            raise ValueError(f"{name} must be one of {listed}, not {value!r}")
        return value


def flag(name: str, value: Any) -> bool:
    """Return a bool as it is; ValueError for anything else, "false" among it."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")
    return value


def block_size(name: str, value: Any) -> int:
    """Return a whole number from 1 to 2^20 as an int; ValueError for anything else.

    The bound is there for typing errors: a block is a row of a matrix at most.
    """
    number = _real(value)
    if not (1 <= number <= 1 << 20 and number == int(number)):
        raise ValueError(f"{name} must be a whole number from 1 to {1 << 20}, not {value!r}")
    return int(number)
