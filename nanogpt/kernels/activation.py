"""GELU, exact: x times the normal distribution's Φ(x) (Hendrycks and Gimpel, arXiv:1606.08415)."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Elements a program, and warps: the fastest on an H200.
FORWARD = (2048, 4)
BACKWARD = (1024, 4)


@triton.jit
def _normal(x):
    """Return Φ(x) and exp(-x²/2).

    Both share their one exponential: the tail Φ(-|x|) is it times a polynomial in 1/(1 + |x|/4),
    fitted for the least relative error on [0, 9]: 8e-8. An error function from a library costs
    more than moving the elements does.
    """
    t = 1.0 / (1.0 + 0.25 * tl.abs(x))
    e = tl.exp2(x * x * -0.7213475204444817)
    tail = 0.37778027 - 0.09909515 * t
    tail = -0.33990221 + tail * t
    tail = 0.36042448 + tail * t
    tail = -0.025150938 + tail * t
    tail = 0.13034751 + tail * t
    tail = 0.095323327 + tail * t
    tail = (0.000272744 + tail * t) * e
    return tl.where(x < 0, tail, 1.0 - tail), e


@triton.jit
def _gelu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    below, _ = _normal(v)
    tl.store(y + at, (v * below).to(y.dtype.element_ty), mask=at < n)


@triton.jit
def _gelu_backward(y_grad, x, x_grad, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    above = tl.load(y_grad + at, mask=at < n, other=0.0).to(tl.float32)
    below, e = _normal(v)
    slope = below + v * e * 0.3989422804014327  # the density at zero, 1/sqrt(2π)
    tl.store(x_grad + at, (above * slope).to(x_grad.dtype.element_ty), mask=at < n)


class Gelu(torch.autograd.Function):
    """GELU of a tensor of any shape, computed in float32, in the tensor's dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: D102
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.numel()
        block, warps = FORWARD
        _gelu[(triton.cdiv(n, block),)](x, y, n, BLOCK=block, num_warps=warps)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, y_grad: Tensor) -> Tensor:  # noqa: D102
        (x,) = ctx.saved_tensors
        y_grad, x_grad = y_grad.contiguous(), torch.empty_like(x)
        n = x.numel()
        block, warps = BACKWARD
        _gelu_backward[(triton.cdiv(n, block),)](y_grad, x, x_grad, n, BLOCK=block, num_warps=warps)
        return x_grad
