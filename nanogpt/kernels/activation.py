"""GELU, exact: x times the normal distribution's Φ(x) (Hendrycks and Gimpel, arXiv:1606.08415).

With it the product that follows, since the derivative can be had there for little.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

# Elements a program of the forward pass, and warps: the fastest on an H200.
FORWARD = (2048, 4)

# Rows, columns and inner width of a tile of the product, and warps, on 3 stages: the fastest of
# forty on an H100, and small enough for two programs on a multiprocessor, one of which computes
# derivatives while the other multiplies. Where it was not measured, it is not used.
TILE = (128, 128, 64)
TILE_WARPS = 8
GROUP = 8
IN_REGISTERS = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


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
def _slope(x):
    """Return GELU's derivative."""
    below, e = _normal(x)
    return below + x * e * 0.3989422804014327  # the density at zero, 1/sqrt(2π)


@triton.jit
def _gelu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    below, _ = _normal(v)
    tl.store(y + at, (v * below).to(y.dtype.element_ty), mask=at < n)


@triton.jit
def _product_gelu_backward(
    y_grad, weight_t, x, x_grad, n,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """``x_grad = (y_grad @ weight_t.T) * gelu'(x)`` of whole tiles.

    ``y_grad`` is (rows, WIDTH), ``weight_t`` (n, WIDTH), ``x`` and ``x_grad`` (rows, n).
    """
    # Programs that run together share rows of one operand and columns of the other.
    tiles = n // COLUMNS
    group = tl.program_id(0) // (GROUP * tiles) * GROUP
    height = tl.minimum(tl.num_programs(0) // tiles - group, GROUP)
    place = tl.program_id(0) % (GROUP * tiles)
    row = ((group + place % height) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = place // height * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    left = y_grad + row[:, None] * WIDTH + inner[None, :]
    right = weight_t + column[None, :] * WIDTH + inner[:, None]
    product = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, WIDTH, INNER):
        product = tl.dot(tl.load(left + start), tl.load(right + start), product)
    at = row[:, None] * n + column[None, :]
    v = tl.load(x + at).to(tl.float32)
    dtype = x_grad.dtype.element_ty
    tl.store(x_grad + at, (product.to(dtype).to(tl.float32) * _slope(v)).to(dtype))


class GeluLinear(torch.autograd.Function):
    """``gelu(x) @ weight.T``: (..., H) and (C, H) give (..., C); GELU is computed in float32.

    Under autocast the product is taken as any other. On a GPU of capability 9, GELU's derivative is
    applied to the product of the backward pass while that is still in registers.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # noqa: D102
        x = x.contiguous()
        activated = torch.empty_like(x)
        n = x.numel()
        block, warps = FORWARD
        _gelu[(triton.cdiv(n, block),)](x, activated, n, BLOCK=block, num_warps=warps)
        y = F.linear(activated, weight)
        # The weight as the product saw it; autocast is off in the backward pass.
        ctx.save_for_backward(x, activated, weight.to(y.dtype))
        ctx.weight_dtype = weight.dtype
        return y

    @staticmethod
    def backward(ctx: Any, y_grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        x, activated, weight = ctx.saved_tensors
        y_grad = y_grad.contiguous()
        width, n = weight.shape
        rows = x.numel() // n
        fits = rows % TILE[0] == n % TILE[1] == width % TILE[2] == 0
        if IN_REGISTERS and fits and x.dtype == y_grad.dtype != torch.float32:
            x_grad = torch.empty_like(x)
            _product_gelu_backward[(rows // TILE[0] * (n // TILE[1]),)](
                y_grad, weight.t().contiguous(), x, x_grad, n,
                WIDTH=width, ROWS=TILE[0], COLUMNS=TILE[1], INNER=TILE[2], GROUP=GROUP,
                num_warps=TILE_WARPS, num_stages=3,
            )  # fmt: skip
        else:
            x_grad = torch.ops.aten.gelu_backward((y_grad @ weight).to(x.dtype), x)
        weight_grad = y_grad.view(rows, width).t() @ activated.view(rows, n).to(y_grad.dtype)
        return x_grad, weight_grad.to(ctx.weight_dtype)
