"""The output layer and its loss, with the logits overwritten by their gradient."""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

# A row is read three times: for its maximum, for the sum of exponentials, for the gradient. Few
# programs at a time on a multiprocessor keep the rows in flight within the second-level cache, so
# that only the first reading comes from memory.
BLOCK = 8192
WARPS = 16

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(logits, at, CLASSES: tl.constexpr):
    return tl.load(logits + at, mask=at < CLASSES, other=float("-inf")).to(tl.float32)


@triton.jit
def _loss_and_gradient(
    logits, targets, losses, n, CLASSES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write a row's loss; replace its logits by ``(softmax - one_hot) / n``.

    Arithmetic and reductions limit it as much as memory does: each thread keeps a maximum and a sum
    of its own until a pass ends; powers of two instead of e, the division as a shift of the
    exponent, and the target's one subtracted where it is, not looked for in every element.
    ``CLASSES`` is known when it is compiled, and with it how the rows are aligned.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * CLASSES
    block = tl.arange(0, BLOCK)

    maxima = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, CLASSES, BLOCK):
        maxima = tl.maximum(maxima, _load(logits, start + block, CLASSES))
    largest = tl.max(maxima, 0)

    shift = largest * LOG2_E
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, CLASSES, BLOCK):
        sums += tl.exp2(_load(logits, start + block, CLASSES) * LOG2_E - shift)
    total = tl.sum(sums, 0)

    target = tl.load(targets + row)
    known = (target >= 0) & (target < CLASSES)
    picked = tl.load(logits + target, mask=known, other=float("nan")).to(tl.float32)
    log_total = largest + tl.log(total)
    tl.store(losses + row, log_total - picked)
    tl.debug_barrier()  # from here on another thread may overwrite the target's logit
    shift += tl.log2(total * n)
    for start in range(0, CLASSES, BLOCK):
        at = start + block
        gradient = tl.exp2(_load(logits, at, CLASSES) * LOG2_E - shift)
        tl.store(logits + at, gradient.to(logits.dtype.element_ty), mask=at < CLASSES)
    tl.debug_barrier()
    gradient = (tl.exp(picked - log_total) - 1.0) / n
    tl.store(logits + target, gradient.to(logits.dtype.element_ty), mask=known)


class LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of ``hidden @ weight.T``: (N, C), (V, C) and (N,) give a float32 scalar.

    It is divided by the number of passes here, and not by the caller, so that the gradient of the
    logits is rounded at its final size. Early in training a class is about as likely after one
    token as after another: errors of rounding have one sign and add up instead of cancelling, and
    at another size they are others.

    Under autocast the product is taken as any other. The gradient of the logits is computed in the
    forward pass, without the factor that comes from above; being a single number, it can be applied
    to the two products of the backward pass instead, which are far smaller.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, passes: int
    ) -> Tensor:
        logits = F.linear(hidden, weight)
        n, n_classes = logits.shape
        losses = torch.empty(n, dtype=torch.float32, device=logits.device)
        _loss_and_gradient[(n,)](
            logits, targets, losses, n * passes, CLASSES=n_classes, BLOCK=BLOCK, num_warps=WARPS
        )
        # As the product saw them; autocast is off in the backward pass.
        ctx.save_for_backward(hidden.to(logits.dtype), weight.to(logits.dtype), logits)
        ctx.dtypes = hidden.dtype, weight.dtype
        return losses.mean() / passes

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: D102
        hidden, weight, logits_grad = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        hidden_grad = ((logits_grad @ weight) * factor).to(hidden_dtype)
        weight_grad = (logits_grad.t() @ hidden).to(weight_dtype) * factor
        return hidden_grad, weight_grad, None, None
