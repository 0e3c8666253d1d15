"""AdamS: Adam with the momentum in place of the second moment (Zhang et al. 2025), two ways."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.functional import bias_correction, descend, foreach_descend
from powerstep_repro.optim.fused import Kernel
from powerstep_repro.optim.registry import register
from powerstep_repro.optim.rules import Interval, Pair


@register("adams")
class AdamS(BaseOptimizer):
    """AdamS: normalised by the root of the old momentum's and the gradient's weighted squares.

    No bias correction. The state is one ``momentum`` of the parameter's shape: 4 bytes a
    parameter. (The AdamS of the package pytorch_optimizer is another method.)

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        betas: Coefficients (β1, β2), each in [0, 1); the paper's (0.9, 0.95).
        eps: Added to the root, ε >= 0; the paper's 1e-8.
        weight_decay: Decoupled weight decay λ >= 0.
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {"betas": Pair(Interval("[0, 1)")), "eps": Interval("[0, inf)")}
    kernel = Kernel("adams", lambda hyper: hyper["betas"])

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *,
        betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.0,
        implementation: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(params, locals())

    @staticmethod
    def update(p, g, momentum, *, lr, betas, eps, weight_decay):
        """Take one step on one tensor, in place on ``p`` and ``momentum``."""
        beta1, beta2 = betas
        nu = momentum.square().mul_(beta2)
        nu.addcmul_(g, g, value=1 - beta2)  # ν = β2·m² + (1 - β2)g², the old m
        momentum.mul_(beta1).add_(g, alpha=1 - beta1)  # m ← β1·m + (1 - β1)g
        descend(p, momentum / nu.sqrt_().add_(eps), lr, weight_decay)  # u = m/(√ν + ε)

    @staticmethod
    def foreach_update(p, g, momentum, *, lr, betas, eps, weight_decay):
        """``update`` over lists of tensors."""
        beta1, beta2 = betas
        nu = torch._foreach_mul(momentum, momentum)
        torch._foreach_mul_(nu, beta2)
        torch._foreach_addcmul_(nu, g, g, value=1 - beta2)
        torch._foreach_mul_(momentum, beta1)
        torch._foreach_add_(momentum, g, alpha=1 - beta1)
        torch._foreach_sqrt_(nu)
        torch._foreach_add_(nu, eps)
        foreach_descend(p, torch._foreach_div(momentum, nu), lr, weight_decay)


@register("adams_released")
class AdamSReleased(AdamS):
    """AdamS as in the authors' code: the new momentum in ν, and both averages bias-corrected."""

    counts = True

    @staticmethod
    def update(p, g, momentum, step, *, lr, betas, eps, weight_decay):
        """Take step t = ``step`` on one tensor, in place on ``p`` and ``momentum``."""
        beta1, beta2 = betas
        momentum.mul_(beta1).add_(g, alpha=1 - beta1)  # m ← β1·m + (1 - β1)g
        nu = momentum.square().mul_(beta2)
        nu.addcmul_(g, g, value=1 - beta2)  # ν = β2·m² + (1 - β2)g², the new m
        m_hat = momentum / bias_correction(step, beta1)
        nu_hat = nu / bias_correction(step, beta2)
        descend(p, m_hat / nu_hat.sqrt_().add_(eps), lr, weight_decay)
