"""What a fused step remembers of the one before, and how it sees that this still holds."""

from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Hyperparameters that say how a step is taken and moments are stored; an update does not see them.
STORAGE = ("implementation", "block_size", "code", "code_m", "code_v", "whole_blocks")


class Kept(NamedTuple):
    """The fused batches of a group, and the facts under which they hold."""

    batches: list[Any]
    lookups: list[tuple[dict[str, Any], str]]  # where the state's tensors are found
    facts: list[Any]


def facts(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    lookups: list[tuple[dict[str, Any], str]],
) -> list[Any]:
    """Return what fused steps of a group rest on: tensors, where they lie, how they are read.

    This is most of the host's work in a fused step, so it is left to loops in C. No tensor is in
    it: a gradient that was held here could not be freed.

    Args:
        optimizer: Whose state it is.
        group: One of its groups, of plain (not sharded) tensors.
        lookups: Dictionaries of the state with the name of a tensor in each.
    """
    params, grads = group["params"], [p.grad for p in group["params"]]
    if type(None) in map(type, grads):
        params = [p for p in params if p.grad is not None]
        grads = [g for g in grads if g is not None]
    try:
        state = [values[name] for values, name in lookups]
        both = params + grads
        return [
            id(group), len(both), *map(group.get, STORAGE), group.get("quantized"),
            *map(id, params), *map(id, optimizer.state.values()), *map(Tensor.data_ptr, both),
            *map(Tensor.data_ptr, state), *map(Tensor.numel, params),
            *map(Tensor.is_contiguous, both), *map(attrgetter("dtype"), grads),
        ]  # fmt: skip
    except (KeyError, RuntimeError):  # a state that was taken away, a sparse gradient
        return []
