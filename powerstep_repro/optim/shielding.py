"""States mapped: shielded from the casts of ``Optimizer.load_state_dict``, back, and to shapes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Shielded:
    """A tensor that ``Optimizer.load_state_dict`` passes on without looking at it."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def shielded(state: Any) -> Any:
    """Return ``state``, however nested, with its tensors shielded."""
    return _mapped(state, Tensor, Shielded)


def unshielded(state: Any, device: torch.device | None) -> Any:
    """Return ``state``, however nested, with copies on ``device`` of its shielded tensors."""
    # A copy, so that the loaded dictionary does not change with the next step.
    return _mapped(state, Shielded, lambda s: s.tensor.detach().to(device=device, copy=True))


def shapes(state: Any) -> Any:
    """Return ``state``, however nested, with a shape for each tensor: the local one of a shard."""
    return _mapped(state, Tensor, lambda t: tuple(getattr(t, "_local_tensor", t).shape))


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {k: _mapped(v, kind, function) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(v, kind, function) for v in value)
    return value
