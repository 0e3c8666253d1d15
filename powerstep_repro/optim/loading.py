"""What an optimizer loads must be its own: names and shapes are compared before a bit is copied."""

from typing import Any

import torch
from torch import Tensor

from powerstep_repro.optim.sharded import is_sharded


def check_state_dict(given: Any, optimizer: torch.optim.Optimizer) -> None:
    """Refuse what ``state_dict`` did not return, e.g. a whole checkpoint.

    Raises:
        ValueError: It has no state and no groups.
    """
    if not (isinstance(given, dict) and {"state", "param_groups"} <= given.keys()):
        keys = f" of {', '.join(map(str, given))}" if isinstance(given, dict) else ""
        raise ValueError(
            f"{type(optimizer).__name__} loads what state_dict() returned, a dictionary of state "
            f"and param_groups, not a {type(given).__name__}{keys}"
        )


def fitted(
    saved: dict[str, Any], fresh: dict[str, Tensor], p: Tensor, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return a copy of a parameter's loaded state.

    Args:
        saved: The state, with the user's own keys, which stay as they are.
        fresh: The state that ``p`` would start with; its tensors are written to and returned.
        p: The parameter.
        optimizer: For the message.

    Raises:
        ValueError: A name is missing, or a shape, an integer dtype or a layout is another one.
    """
    name = type(optimizer).__name__
    if not fresh.keys() <= saved.keys():
        raise ValueError(
            f"the loaded state is another optimizer's: it holds {', '.join(map(str, saved))}; "
            f"{name} keeps {', '.join(fresh)} for a parameter of shape {tuple(p.shape)}"
        )
    state = dict(saved)
    for key, like in fresh.items():
        value = torch.as_tensor(saved[key], device=p.device).detach()
        flat = value.ndim == 1 and not is_sharded(like)  # as 8-bit state once was
        fits = value.shape == like.shape or (flat and value.numel() == like.numel())
        exact = value.dtype == like.dtype or like.is_floating_point()
        if not (fits and exact and is_sharded(value) == is_sharded(like)):
            raise ValueError(
                f"the loaded state does not fit a parameter of shape {tuple(p.shape)}: {name} "
                f"keeps {key} as {_described(like)}, not {_described(value)}"
            )
        state[key] = like.copy_(value.view(like.shape))
    return state


def _described(t: Tensor) -> str:
    how = "sharded " if is_sharded(t) else ""
    return f"a {how}{t.dtype} tensor of shape {tuple(t.shape)}"
