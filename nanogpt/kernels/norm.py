"""A step of the residual stream: add a branch, normalise the sum."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows that a program takes at a time, and warps: the fastest at widths 768 and 1024 on an H100.
FORWARD = (2, 4)
BACKWARD = (1, 4)
# Programs of the backward pass. Each sums the weight's gradient over its own rows, in a fixed
# order: the result is the same on every card and in every run.
PROGRAMS = 1024


# float32 in two halves of 16 bits: the number rounded to bfloat16, and the bits below that. The
# gradient of a stream is wanted in both precisions, by the norm before it and by its branch.


@triton.jit
def _halves(x):
    """Return the two halves. A number half-way between two of bfloat16 loses a last bit."""
    bits = x.to(tl.uint32, bitcast=True)
    bits = tl.where(x == x, bits, 0x7FC00000)
    upper, lower = bits >> 16, bits & 0xFFFF
    rounded = (bits + 0x7FFF + (upper & 1)) >> 16
    # Rounded up or not is what the lower half's first bit says when they are put together.
    lower = tl.where((lower == 0x8000) & (rounded == upper), 0x7FFF, lower)
    return _bfloat16(rounded), _bfloat16(lower)


@triton.jit
def _whole(rounded, lower):
    rounded = rounded.to(tl.uint16, bitcast=True).to(tl.uint32)
    lower = lower.to(tl.uint16, bitcast=True).to(tl.uint32)
    return (((rounded - (lower >> 15)) << 16) | lower).to(tl.float32, bitcast=True)


@triton.jit
def _bfloat16(bits):
    return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _stream(pointer, HALVES: tl.constexpr):
    """Return where a stream's numbers lie; in halves it is typed otherwise."""
    if HALVES:
        pointer = tl.multiple_of(pointer.to(tl.pointer_type(tl.float32), bitcast=True), 16)
    return pointer


@triton.jit
def _add_norm(
    residual, branch, weight, added, normed, means, scales, n_rows, width,
    EPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, FROM_HALVES: tl.constexpr,
    TO_HALVES: tl.constexpr,
):  # fmt: skip
    residual, added = _stream(residual, FROM_HALVES), _stream(added, TO_HALVES)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * width + column[None, :]
    within = column[None, :] < width
    mask = (row[:, None] < n_rows) & within
    x = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(branch + at, mask=mask, other=0.0).to(tl.float32)
    stored = x.to(added.dtype.element_ty)
    tl.store(added + at, stored, mask=mask)
    x = stored.to(tl.float32)  # the norm sees what the stream holds
    mean = tl.sum(x, 1) / width
    centred = tl.where(within, x - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + EPS)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    y = centred * scale[:, None] * w[None, :]
    tl.store(normed + at, y.to(normed.dtype.element_ty), mask=mask)
    tl.store(means + row, mean, mask=row < n_rows)
    tl.store(scales + row, scale, mask=row < n_rows)


@triton.jit
def _add_norm_backward(
    normed_grad, added_grad, added, weight, means, scales, residual_grad, branch_grad, weight_grads,
    n_rows, width, size, ROWS: tl.constexpr, BLOCK: tl.constexpr, FROM_HALVES: tl.constexpr,
    TO_HALVES: tl.constexpr,
):  # fmt: skip
    """``size`` is that of one half: of a stream that is not in halves, all of it."""
    added = _stream(added, TO_HALVES)
    column = tl.arange(0, BLOCK)
    within = column[None, :] < width
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    weight_sum = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0) * ROWS
    for start in range(first, n_rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        at = row[:, None].to(tl.int64) * width + column[None, :]
        mask = (row[:, None] < n_rows) & within
        dy = tl.load(normed_grad + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(added + at, mask=mask, other=0.0).to(tl.float32)
        if TO_HALVES:
            rounded = tl.load(added_grad + at, mask=mask, other=0.0)
            above = _whole(rounded, tl.load(added_grad + size + at, mask=mask, other=0.0))
        else:
            above = tl.load(added_grad + at, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(means + row, mask=row < n_rows, other=0.0)
        scale = tl.load(scales + row, mask=row < n_rows, other=0.0)
        x_hat = tl.where(mask, (x - mean[:, None]) * scale[:, None], 0.0)
        weight_sum += tl.sum(dy * x_hat, 0)
        dy *= w[None, :]
        along = tl.sum(dy * x_hat, 1) / width
        shift = tl.sum(dy, 1) / width
        dx = above + scale[:, None] * (dy - shift[:, None] - x_hat * along[:, None])
        if FROM_HALVES:
            rounded, lower = _halves(dx)
            tl.store(residual_grad + at, rounded, mask=mask)
            tl.store(residual_grad + size + at, lower, mask=mask)
        else:
            tl.store(residual_grad + at, dx.to(residual_grad.dtype.element_ty), mask=mask)
            tl.store(branch_grad + at, dx.to(branch_grad.dtype.element_ty), mask=mask)
    tl.store(weight_grads + tl.program_id(0) * width + column, weight_sum, mask=column < width)


class AddNorm(torch.autograd.Function):
    """``residual + branch`` and its layer norm (no bias), the latter in the branch's dtype.

    The branch comes out of a product, so its dtype is the one that the next product wants: under
    autocast the norm is rounded once, where it is written. Statistics and sums are float32.

    Between two of these, a float32 stream beside bfloat16 branches goes in halves: (2, ..., C) in
    bfloat16. Its values are those of float32, their bytes taken two by two; of its gradient, the
    first half is the numbers rounded to bfloat16, where they are the branch's gradient too, and the
    second the bits that rounding cut off. So 14 bytes are moved where 16 were.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, residual: Tensor, branch: Tensor, weight: Tensor, eps: float, to_halves: bool
    ) -> tuple[Tensor, Tensor]:
        residual, branch = residual.contiguous(), branch.contiguous()
        width = branch.shape[-1]
        n_rows = branch.numel() // width
        from_halves = residual.dim() != branch.dim()
        stream_dtype = torch.float32 if from_halves else residual.dtype
        to_halves = to_halves and stream_dtype == torch.float32 and branch.dtype == torch.bfloat16
        if to_halves:
            added = branch.new_empty(2, *branch.shape)
        else:
            added = torch.empty_like(branch, dtype=stream_dtype)
        normed = torch.empty_like(branch)
        means = torch.empty(n_rows, dtype=torch.float32, device=residual.device)
        scales = torch.empty_like(means)
        rows, warps = FORWARD
        _add_norm[(triton.cdiv(n_rows, rows),)](
            residual, branch, weight, added, normed, means, scales, n_rows, width,
            EPS=eps, ROWS=rows, BLOCK=triton.next_power_of_2(width),
            FROM_HALVES=from_halves, TO_HALVES=to_halves, num_warps=warps,
        )  # fmt: skip
        ctx.save_for_backward(added, weight, means, scales)
        ctx.from_halves, ctx.to_halves = from_halves, to_halves
        return added, normed

    @staticmethod
    def backward(  # noqa: D102
        ctx: Any, added_grad: Tensor, normed_grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        added, weight, means, scales = ctx.saved_tensors
        added_grad, normed_grad = added_grad.contiguous(), normed_grad.contiguous()
        width = normed_grad.shape[-1]
        n_rows = normed_grad.numel() // width
        if ctx.from_halves:
            residual_grad = normed_grad.new_empty(2, *normed_grad.shape)
            written = normed_grad  # to nothing: the branch's gradient is one of the halves
        else:
            stream_dtype = torch.float32 if ctx.to_halves else added.dtype
            residual_grad = torch.empty_like(normed_grad, dtype=stream_dtype)
            written = torch.empty_like(normed_grad)
        weight_grads = torch.empty(PROGRAMS, width, dtype=torch.float32, device=added.device)
        rows, warps = BACKWARD
        _add_norm_backward[(PROGRAMS,)](
            normed_grad, added_grad, added, weight, means, scales,
            residual_grad, written, weight_grads, n_rows, width, normed_grad.numel(),
            ROWS=rows, BLOCK=triton.next_power_of_2(width),
            FROM_HALVES=ctx.from_halves, TO_HALVES=ctx.to_halves, num_warps=warps,
        )  # fmt: skip
        branch_grad = residual_grad[0] if ctx.from_halves else written
        weight_grad = weight_grads.sum(0).to(weight.dtype)
        return residual_grad, branch_grad, weight_grad, None, None
