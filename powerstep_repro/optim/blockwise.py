"""What optimizers with quantized state have in common."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from powerstep_repro.optim.base import BaseOptimizer


class BlockwiseOptimizer(BaseOptimizer):
    """An optimizer with quantized state: ``NAME_codes`` per element, ``NAME_scales`` per block.

    Blocks run over a parameter's elements in their logical order, whatever its strides; of a
    sharded parameter (DTensor), over the local shard, and its state is a plain local tensor.

    Under ``torch.compile`` a step stays as it is, outside the graph. Compiled for a CPU (torch
    2.13) it is slower, and elements after a tensor's last whole block would never move.
    """

    layout: ClassVar = frozenset({"block_size", "code", "code_m", "code_v"})

    @torch._disable_dynamo
    def step(
        self, closure: Callable[[], Any] | None = None, *, grad_factor: Tensor | None = None
    ) -> Any:
        """Perform one update, as :meth:`BaseOptimizer.step`."""
        return super().step(closure, grad_factor=grad_factor)

    def cut_state(
        self, state: dict[str, Tensor], start: int, length: int, group: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Return the part of a flat state that goes with ``length`` elements from ``start``."""
        first, count = start // group["block_size"], -(-length // group["block_size"])
        scales = {k: s[first : first + count] for k, s in state.items() if k.endswith("_scales")}
        return super().cut_state(state, start, length, group) | scales
