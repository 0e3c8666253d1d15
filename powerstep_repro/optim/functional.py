"""The two operations that most of the update rules share, each per tensor and per list.

The per-tensor form is the oracle. The list form does the same over many tensors with torch's
multi-tensor kernels; on the CPU, where those are loops, it picks the cheaper arithmetic.
"""

import math

import torch
from torch import Tensor

Tensors = list[Tensor] | tuple[Tensor, ...]  # torch's list functions return either


def signed_power(x: Tensor, beta: float) -> Tensor:
    """Signed power transform Φ_β(x) = sign(x)·|x|^β, equation (5).

    Φ_β(0) = 0 for every β: the sign takes care of 0**0 = 1. β = 0 is ``sign(x)`` itself and
    β = 1 is ``x``, so that both ends are exact. NaN stays NaN for β > 0; sign(NaN) is 0.

    Args:
        x: Any real tensor, left as it is.
        beta: Exponent in [0, 1].

    Returns:
        A tensor like ``x``; for β = 1 it is ``x`` and must not be written to.
    """
    if beta == 0:
        return x.sign()
    if beta == 1:
        return x
    return x.abs().pow_(beta).copysign_(x)


def descend(p: Tensor, u: Tensor, lr: float | Tensor, weight_decay: float) -> None:
    """Decoupled step θ ← (1 - ηλ)θ - ηu, in place on ``p`` (last line of algorithm 1)."""
    if weight_decay != 0:
        p.mul_(1 - lr * weight_decay)
    if isinstance(lr, Tensor):  # as ``alpha`` it would have to be read: a host sync
        p.sub_(u * lr)
    else:
        p.add_(u, alpha=-lr)


def foreach_signed_power(xs: list[Tensor], beta: float) -> Tensors:
    """``signed_power`` of every tensor of a list (all on one device).

    On the CPU |x|^β is exp2(β·log2|x|): 1.4 ns an element where ``pow`` takes 2.5. Its relative
    error is at most about (β·|log2|x|| + 1)·1.2e-7, three ulp at β = 0.1.
    """
    if beta == 0:
        return torch._foreach_sign(xs)
    if beta == 1:
        return xs
    if xs[0].device.type == "cpu":
        return [x.abs().log2_().mul_(beta).exp2_().copysign_(x) for x in xs]
    powers = torch._foreach_abs(xs)
    torch._foreach_pow_(powers, beta)
    torch._foreach_mul_(powers, torch._foreach_sign(xs))
    return powers


def foreach_descend(ps: list[Tensor], us: Tensors, lr: float | Tensor, weight_decay: float) -> None:
    """``descend`` for every tensor of a list, in place on ``ps``."""
    if weight_decay != 0:
        torch._foreach_mul_(ps, 1 - lr * weight_decay)
    if isinstance(lr, Tensor):
        torch._foreach_sub_(ps, torch._foreach_mul(us, lr))
    else:
        torch._foreach_add_(ps, us, alpha=-lr)


def bias_correction(step: Tensor, beta: float) -> Tensor:
    """Return 1 - β^t as a tensor: reading the counter t would wait for the device.

    Through ``expm1`` it keeps float32's precision where 1 - β^t is small.
    """
    return -torch.expm1(step * math.log(beta)) if beta > 0 else torch.ones_like(step)
