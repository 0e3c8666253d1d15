"""Tensors wrapped so that ``Optimizer.load_state_dict`` does not cast them, and unwrapped."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Shielded:
    """A tensor that ``Optimizer.load_state_dict`` passes on without looking at it."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return ``value``, however nested, with ``function`` applied to its tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {k: map_tensors(v, function) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(v, function) for v in value)
    return value


def unshielded(value: Any, device: torch.device | None) -> Any:
    """Return ``value``, however nested, with copies on ``device`` of its shielded tensors."""
    if isinstance(value, Shielded):
        # A copy, so that the loaded dictionary does not change with the next step.
        return value.tensor.detach().to(device=device, copy=True)
    if isinstance(value, dict):
        return {k: unshielded(v, device) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(unshielded(v, device) for v in value)
    return value
