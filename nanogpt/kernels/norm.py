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


@triton.jit
def _add_norm(
    residual, branch, weight, added, normed, means, scales, n_rows, width,
    EPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
    n_rows, width, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
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
        above = tl.load(added_grad + at, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(means + row, mask=row < n_rows, other=0.0)
        scale = tl.load(scales + row, mask=row < n_rows, other=0.0)
        x_hat = tl.where(mask, (x - mean[:, None]) * scale[:, None], 0.0)
        weight_sum += tl.sum(dy * x_hat, 0)
        # The norm's own gradient, and the stream's from above.
        dy *= w[None, :]
        along = tl.sum(dy * x_hat, 1) / width
        shift = tl.sum(dy, 1) / width
        dx = above + scale[:, None] * (dy - shift[:, None] - x_hat * along[:, None])
        # The same number in two precisions: the stream's and the branch's.
        tl.store(residual_grad + at, dx.to(residual_grad.dtype.element_ty), mask=mask)
        tl.store(branch_grad + at, dx.to(branch_grad.dtype.element_ty), mask=mask)
    tl.store(weight_grads + tl.program_id(0) * width + column, weight_sum, mask=column < width)


class AddNorm(torch.autograd.Function):
    """``residual + branch`` and its layer norm (no bias), the latter in the branch's dtype.

    The branch comes out of a product, so its dtype is the one that the next product wants: under
    autocast the norm is rounded once, where it is written. Statistics and sums are float32.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, residual: Tensor, branch: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        residual, branch = residual.contiguous(), branch.contiguous()
        width = branch.shape[-1]
        n_rows = branch.numel() // width
        added = torch.empty_like(residual)
        normed = torch.empty_like(branch)
        means = torch.empty(n_rows, dtype=torch.float32, device=residual.device)
        scales = torch.empty_like(means)
        rows, warps = FORWARD
        _add_norm[(triton.cdiv(n_rows, rows),)](
            residual, branch, weight, added, normed, means, scales, n_rows, width,
            EPS=eps, ROWS=rows, BLOCK=triton.next_power_of_2(width), num_warps=warps,
        )  # fmt: skip
        ctx.save_for_backward(added, weight, means, scales)
        return added, normed

    @staticmethod
    def backward(  # noqa: D102
        ctx: Any, added_grad: Tensor, normed_grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        added, weight, means, scales = ctx.saved_tensors
        added_grad, normed_grad = added_grad.contiguous(), normed_grad.contiguous()
        width = added.shape[-1]
        n_rows = added.numel() // width
        residual_grad, branch_grad = torch.empty_like(added), torch.empty_like(normed_grad)
        weight_grads = torch.empty(PROGRAMS, width, dtype=torch.float32, device=added.device)
        rows, warps = BACKWARD
        _add_norm_backward[(PROGRAMS,)](
            normed_grad, added_grad, added, weight, means, scales,
            residual_grad, branch_grad, weight_grads, n_rows, width,
            ROWS=rows, BLOCK=triton.next_power_of_2(width), num_warps=warps,
        )  # fmt: skip
        return residual_grad, branch_grad, weight_grads.sum(0).to(weight.dtype), None
