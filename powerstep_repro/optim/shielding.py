"""Loaded states kept from the casts of ``Optimizer.load_state_dict``; states that must fit."""

from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor

from powerstep_repro.optim.tensors import local


class Shielded:
    """A tensor that ``Optimizer.load_state_dict`` passes on without looking at it."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def shielded(loaded: dict[str, Any], owner: str, own: Set[str]) -> dict[str, Any]:
    """Return what is to be loaded, the tensors of its state shielded.

    Args:
        loaded: What ``state_dict`` of an optimizer returned.
        owner: The optimizer, for the message.
        own: Hyperparameters that not every optimizer has.

    Raises:
        ValueError: It is no optimizer's state, or one of another optimizer.
    """
    state, groups = loaded.get("state"), loaded.get("param_groups")
    if not (
        isinstance(state, dict)
        and isinstance(groups, list)
        and all(isinstance(group, dict) and "params" in group for group in groups)
    ):
        raise no_state(loaded, owner)
    for key in state:
        if isinstance(key, str) and key.isdecimal():  # torch would take it for no parameter's
            raise ValueError(f"the loaded state is of {key!r}, a string; parameters are integers")
    for group in groups:
        if own and own.isdisjoint(group):
            theirs = ", ".join(key for key in group if key != "params")
            raise ValueError(
                f"the loaded state is another optimizer's: a group has {theirs}; "
                f"{owner} has {', '.join(sorted(own))}"
            )
    return {**loaded, "state": _mapped(state, Tensor, Shielded)}


def no_state(loaded: Any, owner: str) -> ValueError:
    """Return the error for what is not of the form that ``state_dict`` returns."""
    found = f"a {type(loaded).__name__}"
    if isinstance(loaded, dict):
        found += f" of {', '.join(map(repr, loaded)) or 'nothing'}"
    return ValueError(
        f"{owner} loads what state_dict() returned, a dictionary with 'state', itself one, and the "
        f"list 'param_groups'; this is {found}"
    )


def unshielded(state: Any, device: torch.device | None) -> Any:
    """Return ``state``, however nested, with copies on ``device`` of its shielded tensors."""
    # A copy, so that the loaded dictionary does not change with the next step.
    return _mapped(state, Shielded, lambda s: s.tensor.detach().to(device=device, copy=True))


def fitted(state: dict[str, Any], wanted: dict[str, Any], owner: str, of: str) -> dict[str, Any]:
    """Return a loaded state in the dtypes that it should have, which loses no bit.

    Args:
        state: Loaded for one parameter; of a shard, its local shape counts.
        wanted: What the parameter would start with.
        owner: The optimizer, for the message.
        of: The parameter, for the message.

    Raises:
        ValueError: It has other names or shapes, or a dtype that cannot be widened exactly.
    """
    if set(state) != set(wanted):
        raise ValueError(
            f"the loaded state is another optimizer's: it holds {', '.join(state)}; "
            f"{owner} keeps {', '.join(sorted(wanted))}"
        )
    result = {}
    for name, value in state.items():
        target = wanted[name]
        if (
            isinstance(value, Tensor)
            and isinstance(target, Tensor)
            and value.is_floating_point()
            and torch.promote_types(value.dtype, target.dtype) == target.dtype
        ):
            value = value.to(target.dtype)  # of a run in lower precision, whose scales have that
        for what, fact in (("shape", _shape), ("dtype", lambda t: t.dtype)):
            there, here = (_mapped(s, Tensor, fact) for s in (value, target))
            if there != here:
                raise ValueError(
                    f"the loaded state does not fit {of}: {name} must have {what} {here}, "
                    f"not {there}"
                )
        result[name] = value
    return result


def _shape(t: Tensor) -> tuple[int, ...]:
    return tuple(local(t).shape)


def check_size(state: dict[str, Tensor], p: Tensor, owner: str) -> None:
    """Refuse a parameter that has another number of elements than its state was made for.

    Raises:
        ValueError: It has.
    """
    if state and (made_for := max(local(t).numel() for t in state.values())) != p.numel():
        raise ValueError(
            f"{owner} keeps a state of {made_for:,} elements for a parameter that now has "
            f"{p.numel():,} (shape {tuple(p.shape)}): delete its entry in optimizer.state, or make "
            "a new optimizer"
        )


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, dict):
        return {k: _mapped(v, kind, function) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(v, kind, function) for v in value)
    return value
