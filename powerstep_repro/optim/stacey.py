"""Stacey-(p, 2): primal-dual steepest descent (Luo et al. 2025), their way and as released."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.functional import descend
from powerstep_repro.optim.registry import register
from powerstep_repro.optim.rules import Interval, Pair


@register("stacey")
class Stacey(BaseOptimizer):
    """Stacey-(p, 2), after its authors' repository.

    The transform d = c·(|c| + ε)^(-(p-2)/(p-1)) tends to Φ_β(c) with β = 1/(p-1), yet is 0 at 0.
    (The paper's text has sign(x)·(|x| + ε)^β, which jumps at zero.) The dual step is α, not
    scaled by η, and neither is τ. The state is ``momentum`` and ``dual``: 8 bytes a parameter.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η of the primal step, a number or a one-element tensor.
        power: The norm's p >= 2; the paper's 11, which is β = 0.1.
        alpha: Step α >= 0 of the dual variable; the paper's 0.1.
        tau: Weight τ in [0, 1] of the dual variable; the paper's 0.001.
        betas: Coefficients (β1, β2), each in [0, 1); the paper's (0.9, 0.99).
        eps: Keeps the power finite at zero, ε > 0; the paper's 1e-8.
        weight_decay: Decoupled weight decay λ >= 0.
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {
        "power": Interval("[2, inf)"),
        "alpha": Interval("[0, inf)"),
        "tau": Interval("[0, 1]"),
        "betas": Pair(Interval("[0, 1)")),
        "eps": Interval("(0, inf)"),
    }
    moments: ClassVar = {"momentum": True, "dual": True}

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, power: float = 11.0,
        alpha: float = 0.1, tau: float = 0.001, betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8, weight_decay: float = 0.0, implementation: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(params, locals())

    def init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """m_0 = 0, z_0 = θ_0."""
        state = super().init_state(p, group)
        state["dual"].copy_(p)
        return state

    @staticmethod
    def update(p, g, momentum, dual, *, lr, power, alpha, tau, betas, eps, weight_decay):
        """Take one step on one tensor, in place on ``p``, ``momentum`` and ``dual``."""
        beta1, beta2 = betas
        c = momentum.mul(beta1).add_(g, alpha=1 - beta1)  # c = β1·m + (1 - β1)g, the old m
        dual.sub_(c, alpha=alpha)  # z ← z - αc
        d = c.abs().add_(eps).pow_((2 - power) / (power - 1)).mul_(c)
        decay = p * (lr * weight_decay)  # of the old θ
        p.sub_(d.mul_(lr)).lerp_(dual, tau)  # so that no step moves θ where z is θ
        p.sub_(decay)  # θ ← (1 - τ)(θ - ηd) + τz - ηλθ
        momentum.mul_(beta2).add_(g, alpha=1 - beta2)  # m ← β2·m + (1 - β2)g

    @staticmethod
    def foreach_update(p, g, momentum, dual, *, lr, power, alpha, tau, betas, eps, weight_decay):
        """``update`` over lists of tensors."""
        beta1, beta2 = betas
        c = torch._foreach_mul(momentum, beta1)
        torch._foreach_add_(c, g, alpha=1 - beta1)
        torch._foreach_sub_(dual, c, alpha=alpha)
        d = torch._foreach_abs(c)
        torch._foreach_add_(d, eps)
        torch._foreach_pow_(d, (2 - power) / (power - 1))
        torch._foreach_mul_(d, c)
        torch._foreach_mul_(d, lr)
        decay = torch._foreach_mul(p, lr * weight_decay)
        torch._foreach_sub_(p, d)
        torch._foreach_lerp_(p, dual, tau)
        torch._foreach_sub_(p, decay)
        torch._foreach_mul_(momentum, beta2)
        torch._foreach_add_(momentum, g, alpha=1 - beta2)


@register("stacey_released")
class StaceyReleased(Stacey):
    """Stacey as in the PowerStep authors' code, whose dual term ascends.

    z starts at 0 and collects -αc, yet is *subtracted* from θ with the rest of the update. With
    τ = 1 the loss grows; with the paper's τ = 0.001 the term is too small to matter.
    """

    def init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """m_0 = 0, z_0 = 0."""
        return BaseOptimizer.init_state(self, p, group)

    @staticmethod
    def update(p, g, momentum, dual, *, lr, power, alpha, tau, betas, eps, weight_decay):
        """Take one step on one tensor, in place on ``p``, ``momentum`` and ``dual``."""
        beta1, beta2 = betas
        momentum.mul_(beta2).add_(g, alpha=1 - beta2)  # m ← β2·m + (1 - β2)g
        c = momentum.mul(beta1).add_(g, alpha=1 - beta1)  # c = β1·m + (1 - β1)g, the new m
        y = c / c.abs().pow_((power - 2) / (power - 1)).add_(eps)
        dual.sub_(c, alpha=alpha)  # z ← z - αc
        u = dual.mul(tau).add_(y, alpha=1 - tau)  # u = τz + (1 - τ)y
        descend(p, u, lr, weight_decay)
