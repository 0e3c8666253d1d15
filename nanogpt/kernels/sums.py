"""A gradient in one precision, added to a sum in another."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # elements of a program
WARPS = 4


@triton.jit
def _add_into(part, total, n, FIRST: tl.constexpr, BLOCK: tl.constexpr):
    """``total += part``, or ``total = part``, in the precision of the total."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(part + at, mask=at < n, other=0.0).to(total.dtype.element_ty)
    if not FIRST:
        value += tl.load(total + at, mask=at < n, other=0.0)
    tl.store(total + at, value, mask=at < n)


def add_into(total: Tensor | None, part: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the total, in place, or where there is none a new one of that dtype."""
    first = total is None
    total = torch.empty_like(part, dtype=dtype) if first else total
    n = part.numel()
    _add_into[(triton.cdiv(n, BLOCK),)](
        part, total, n, FIRST=first, BLOCK=BLOCK, num_warps=WARPS
    )  # fmt: skip
    return total
