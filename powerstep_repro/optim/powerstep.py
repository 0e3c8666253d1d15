"""PowerStep: the signed power of a heavy-ball momentum (paper, algorithm 1)."""

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


@register("powerstep")
class PowerStep(BaseOptimizer):
    """PowerStep, equations (6) and (7), with decoupled weight decay.

    β = 0 is SignSGD with momentum exactly, β = 1 is heavy-ball SGD, γ = 0 is Powerball. The state
    is one ``momentum`` of the parameter's shape: 4 bytes a parameter.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        gamma: Momentum coefficient γ in [0, 1); the paper's 0.9.
        beta: Power exponent β in [0, 1]; the paper's 0.1.
        weight_decay: Decoupled weight decay λ >= 0.
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {"gamma": Interval("[0, 1)"), "beta": Interval("[0, 1]")}
    kernel: ClassVar[Kernel | None] = Kernel(
        "powerstep", lambda hyper: (hyper["gamma"], hyper["beta"])
    )

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, gamma: float = 0.9, beta: float = 0.1,
        weight_decay: float = 0.0, implementation: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(params, locals())

    @staticmethod
    def update(p, g, momentum, *, lr, gamma, beta, weight_decay):
        """Take one step on one tensor, in place on ``p`` and ``momentum``."""
        momentum.mul_(gamma).add_(g)  # (6): m ← γm + g
        u = signed_power(momentum, beta)  # (5): u = Φ_β(m)
        descend(p, u, lr, weight_decay)  # (7) with λ, as algorithm 1: θ ← (1 - ηλ)θ - ηu

    @staticmethod
    def foreach_update(p, g, momentum, *, lr, gamma, beta, weight_decay):
        """``update`` over lists of tensors."""
        torch._foreach_mul_(momentum, gamma)
        torch._foreach_add_(momentum, g)
        foreach_descend(p, foreach_signed_power(momentum, beta), lr, weight_decay)
