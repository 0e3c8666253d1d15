"""Loaded states: kept from the casts of ``Optimizer.load_state_dict``, and judged."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerstep_repro.optim.tensors import local


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


def check_fit(state: dict[str, Any], wanted: dict[str, Any], owner: str, of: str) -> None:
    """Refuse a loaded state with other names or shapes than it should have.

    Args:
        state: Loaded for one parameter; of a shard, its local shape counts.
        wanted: What the parameter would start with.
        owner: The optimizer, for the message.
        of: The parameter, for the message.

    Raises:
        ValueError: They differ.
    """
    if set(state) != set(wanted):
        raise ValueError(
            f"the loaded state is another optimizer's: it holds {', '.join(state)}; "
            f"{owner} keeps {', '.join(sorted(wanted))}"
        )
    for name, value in state.items():
        there, here = _shapes(value), _shapes(wanted[name])
        if there != here:
            raise ValueError(
                f"the loaded state does not fit {of}: {name} must have shape {here}, not {there}"
            )


def _shapes(state: Any) -> Any:
    return _mapped(state, Tensor, lambda t: tuple(local(t).shape))


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {k: _mapped(v, kind, function) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(v, kind, function) for v in value)
    return value
