"""AdamW with both moments in blocks of 8-bit codes, with a sound code and as released."""

from typing import ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.functional import bias_correction, descend
from powerstep_repro.optim.fused import Kernel
from powerstep_repro.optim.registry import register
from powerstep_repro.optim.rules import Choice, Interval, Pair, block_size, flag


@register("adamw_int8")
class AdamWInt8(BaseOptimizer):
    """AdamW that stores both moments in low precision and updates from the ones not yet coded.

    m has a signed code, v an unsigned one. The state is ``m_codes``, ``m_scales``, ``v_codes``,
    ``v_scales`` and a counter: 2.0625 bytes a parameter at block 128.

    Args:
        params: Parameters or groups of them; a group with ``quantized=False`` has fp32 state.
        lr: Learning rate η, a number or a one-element tensor.
        betas: Coefficients (β1, β2), each in [0, 1); the paper's (0.9, 0.95).
        eps: Added to the root, ε >= 0; the paper's 1e-8.
        weight_decay: Decoupled weight decay λ >= 0.
        block_size: Elements that share a scale, >= 1; the paper's 128.
        code: "dynamic" or "linear", for both moments.
        code_m: The code of m, if another.
        code_v: The code of v, if another.
        whole_blocks: Keep fp32 state for vectors, and for matrices whose rows are not whole blocks,
            so that no shard can cut a block of theirs.
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {
        "betas": Pair(Interval("[0, 1)")),
        "eps": Interval("[0, inf)"),
        "block_size": block_size,
        "code": Choice(("dynamic", "linear")),
        "code_m": Choice(("dynamic", "linear", None)),
        "code_v": Choice(("dynamic", "linear", None)),
        "whole_blocks": flag,
    }
    moments: ClassVar = {"m": True, "v": False}
    counts = True
    quantized = True
    kernel: ClassVar[Kernel | None] = Kernel("adamw", lambda hyper: hyper["betas"])

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *,
        betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.0,
        block_size: int = 128, code: str = "dynamic", code_m: str | None = None,
        code_v: str | None = None, whole_blocks: bool = False, implementation: str = "auto",
    ) -> None:  # fmt: skip
        BaseOptimizer.__init__(self, params, locals())

    @staticmethod
    def update(p, g, m, v, step, *, lr, betas, eps, weight_decay):
        """Take step t = ``step`` on one tensor, in place on ``p``, ``m`` and ``v``."""
        beta1, beta2 = betas
        m.mul_(beta1).add_(g, alpha=1 - beta1)  # m ← β1·m + (1 - β1)g
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)  # v ← β2·v + (1 - β2)g²
        root = (v / bias_correction(step, beta2)).sqrt_()
        u = (m / bias_correction(step, beta1)).div_(root.add_(eps))  # m̂/(√v̂ + ε)
        descend(p, u, lr, weight_decay)


@register("adamw_int8_released")
class AdamWInt8Released(AdamWInt8):
    """AdamW int8 as in the authors' code, whose collapse is that of its code for v.

    Both moments are linear and *signed*, so v has 127 levels of the 255 it could have: whatever
    is below 1/254 of its block's maximum becomes 0, and the next update is bounded by 1/ε alone.
    Scales have the parameter's dtype and are raised by 1e-12 for coding only, which shrinks v
    in blocks whose maximum is that small. (Released defaults are β2 = 0.999 and λ = 0.01; here
    they are the paper's, as in all its runs.)

    Takes what :class:`AdamWInt8` takes, without codes; there is no fused step.
    """

    rules: ClassVar = {"code": Choice(("released",))}
    kernel = None

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *,
        betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8, weight_decay: float = 0.0,
        block_size: int = 128, whole_blocks: bool = False, implementation: str = "auto",
    ) -> None:  # fmt: skip
        BaseOptimizer.__init__(
            self, params, locals() | {"code": "released", "code_m": None, "code_v": None}
        )
