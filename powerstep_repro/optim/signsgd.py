"""SignSGD with momentum: PowerStep at β = 0 (Bernstein et al. 2018; Balles and Hennig 2018)."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.functional import descend, foreach_descend
from powerstep_repro.optim.fused import Kernel
from powerstep_repro.optim.registry import register
from powerstep_repro.optim.rules import Interval


@register("signsgd")
class SignSGD(BaseOptimizer):
    """Sign of a heavy-ball momentum, with decoupled weight decay; sign(0) = 0.

    The state is one ``momentum`` of the parameter's shape: 4 bytes a parameter.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        gamma: Momentum coefficient γ in [0, 1).
        weight_decay: Decoupled weight decay λ >= 0.
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {"gamma": Interval("[0, 1)")}
    kernel = Kernel("powerstep", lambda hyper: (hyper["gamma"], 0.0))

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, gamma: float = 0.9,
        weight_decay: float = 0.0, implementation: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(params, locals())

    @staticmethod
    def update(p, g, momentum, *, lr, gamma, weight_decay):
        """Take one step on one tensor, in place on ``p`` and ``momentum``."""
        momentum.mul_(gamma).add_(g)  # m ← γm + g
        descend(p, momentum.sign(), lr, weight_decay)  # θ ← (1 - ηλ)θ - η·sign(m)

    @staticmethod
    def foreach_update(p, g, momentum, *, lr, gamma, weight_decay):
        """``update`` over lists of tensors."""
        torch._foreach_mul_(momentum, gamma)
        torch._foreach_add_(momentum, g)
        foreach_descend(p, torch._foreach_sign(momentum), lr, weight_decay)
