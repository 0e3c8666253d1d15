"""A layer whose columns go three ways, as attention's queries, keys and values do."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.library.custom_op("powerstep_repro::sum_of_products", mutates_args=())
def sum_of_products(lefts: list[Tensor], rights: list[Tensor]) -> Tensor:
    """Return the sum of ``left @ right``; each product is added where the one before was written.

    An operator of its own, since a compiler that sees the sum copies before it adds.
    """
    total = lefts[0] @ rights[0]
    for left, right in zip(lefts[1:], rights[1:], strict=True):
        total.addmm_(left, right)
    return total


@sum_of_products.register_fake
def _(lefts: list[Tensor], rights: list[Tensor]) -> Tensor:
    return lefts[0].new_empty(lefts[0].shape[0], rights[0].shape[1])


class SplitLinear(torch.autograd.Function):
    """``x @ weight.T`` in three: (..., C) and (3 * D, C) give three views of (..., D).

    The parts' gradients come as three tensors. To have them side by side, as the backward pass of
    one product wants them, is a pass over memory of its own; three products each way are none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        y = F.linear(x, weight)
        # As the product saw them; autocast is off in the backward pass.
        ctx.save_for_backward(x.to(y.dtype), weight.to(y.dtype))
        ctx.dtypes = x.dtype, weight.dtype
        return y.chunk(3, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        x, weight = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        parts = [grad.reshape(-1, grad.shape[-1]) for grad in grads]
        x_grad = sum_of_products(parts, list(weight.chunk(3))).view(x.shape).to(x_dtype)
        rows = x.reshape(-1, x.shape[-1])
        weight_grad = torch.cat([part.t() @ rows for part in parts]).to(weight_dtype)
        return x_grad, weight_grad
