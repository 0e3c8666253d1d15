"""What a fused step remembers of the one before, and how it sees that this still holds."""

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from powerstep_repro.optim import fused

# Hyperparameters that say how a step is taken and moments are stored; an update does not see them.
STORAGE = ("implementation", "block_size", "code", "code_m", "code_v", "whole_blocks")


class Kept:
    """The fused batches of a group of plain (not sharded) tensors, and what they rest on."""

    def __init__(self, optimizer: torch.optim.Optimizer, batches: list[Any]):
        self.batches = batches
        # Where the state's tensors are found: a dictionary, and a name in it.
        self._lookups = [
            (optimizer.state[p], name)
            for batch in batches
            for p in batch.params
            for name in (*batch.names, *(["step"] if batch.steps else []))
        ]
        self._facts = self._look(optimizer, batches[0].group)

    def holds(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
        """Say whether a step of the group may use these batches again."""
        # A CUDA graph that is being captured needs address tables of its own.
        if not self._facts or fused.capturing(self.batches[0].params[0].device):
            return False
        return self._facts == self._look(optimizer, group)

    def _look(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[Any]:
        """Return which tensors there are, where they lie, and how they are read.

        This is most of the host's work in a fused step, so it is left to loops in C. No tensor is
        in it: a gradient that was held here could not be freed.
        """
        params, grads = group["params"], [p.grad for p in group["params"]]
        if type(None) in map(type, grads):
            params = [p for p in params if p.grad is not None]
            grads = [g for g in grads if g is not None]
        try:
            state = [values[name] for values, name in self._lookups]
            both = params + grads
            return [
                id(group), len(both), *map(group.get, STORAGE), group.get("quantized"),
                *map(id, params), *map(id, optimizer.state.values()), *map(Tensor.data_ptr, both),
                *map(Tensor.data_ptr, state), *map(Tensor.numel, params),
                *map(Tensor.is_contiguous, both), *map(attrgetter("dtype"), grads),
            ]  # fmt: skip
        except (KeyError, RuntimeError):  # a state that was taken away, a sparse gradient
            return []
