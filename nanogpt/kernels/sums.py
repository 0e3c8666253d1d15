"""Gradients of several passes, added in a precision above their own."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # elements of a program
WARPS = 4


@triton.jit
def _add(left, right, total, n, BLOCK: tl.constexpr):
    """``total = left + right`` in the total's precision; it may be one of the two."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(left + at, mask=at < n, other=0.0).to(total.dtype.element_ty)
    value += tl.load(right + at, mask=at < n, other=0.0).to(total.dtype.element_ty)
    tl.store(total + at, value, mask=at < n)


def add(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum, in ``left`` if that is of this dtype."""
    total = left if left.dtype == dtype else torch.empty_like(left, dtype=dtype)
    n = left.numel()
    _add[(triton.cdiv(n, BLOCK),)](left, right, total, n, BLOCK=BLOCK, num_warps=WARPS)
    return total
