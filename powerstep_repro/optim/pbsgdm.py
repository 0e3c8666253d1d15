"""pbSGDM: momentum of signed powers (Zhou et al. 2021), as the paper describes and as released."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.functional import (
    descend,
    foreach_descend,
    foreach_signed_power,
    signed_power,
)
from powerstep_repro.optim.fused import Kernel
from powerstep_repro.optim.registry import register
from powerstep_repro.optim.rules import Interval


@register("pbsgdm")
class PbSGDM(BaseOptimizer):
    """pbSGDM: the power is taken of the gradient, before the momentum (paper, section 2.3).

    Decay is decoupled, as the paper states it for all of its runs. The state is one ``momentum``
    of the parameter's shape: 4 bytes a parameter.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        gamma: Momentum coefficient γ in [0, 1); the paper's 0.9.
        beta: Power exponent β in [0, 1]; the paper's 0.1.
        weight_decay: Decoupled weight decay λ >= 0.
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {"gamma": Interval("[0, 1)"), "beta": Interval("[0, 1]")}
    kernel = Kernel("pbsgdm", lambda hyper: (hyper["gamma"], hyper["beta"]))

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, gamma: float = 0.9, beta: float = 0.1,
        weight_decay: float = 0.0, implementation: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(params, locals())

    @staticmethod
    def update(p, g, momentum, *, lr, gamma, beta, weight_decay):
        """Take one step on one tensor, in place on ``p`` and ``momentum``."""
        momentum.mul_(gamma).add_(signed_power(g, beta))  # m ← γm + Φ_β(g)
        descend(p, momentum, lr, weight_decay)  # θ ← (1 - ηλ)θ - ηm

    @staticmethod
    def foreach_update(p, g, momentum, *, lr, gamma, beta, weight_decay):
        """``update`` over lists of tensors."""
        torch._foreach_mul_(momentum, gamma)
        torch._foreach_add_(momentum, foreach_signed_power(g, beta))
        foreach_descend(p, momentum, lr, weight_decay)


@register("pbsgdm_released")
class PbSGDMReleased(PbSGDM):
    """pbSGDM as in the authors' code: the decay ends up in the momentum.

    There the update aliases the buffer when λθ is added to it, so that decay is accumulated like
    a gradient and its strength is λ/(1 - γ), ten times the λ that is set at γ = 0.9.
    """

    @staticmethod
    def update(p, g, momentum, *, lr, gamma, beta, weight_decay):
        """Take one step on one tensor, in place on ``p`` and ``momentum``."""
        momentum.mul_(gamma).add_(signed_power(g, beta))
        momentum.add_(p, alpha=weight_decay)  # m ← γm + Φ_β(g) + λθ
        descend(p, momentum, lr, weight_decay=0)  # θ ← θ - ηm
