"""PowerStep with its momentum in blocks of 8-bit codes (paper, section 4), and as released."""

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from powerstep_repro.optim.blockwise import BlockwiseOptimizer
from powerstep_repro.optim.functional import descend, signed_power
from powerstep_repro.optim.fused import Moment, fused_step
from powerstep_repro.optim.quantize import (
    LINEAR,
    RELEASED_ADDED,
    block_code,
    dequantize,
    quantize_into,
    zero_blocks,
)
from powerstep_repro.optim.registry import register
from powerstep_repro.optim.rules import Choice, Interval, PositiveInt
from powerstep_repro.optim.tensors import local


@register("powerstep_int8", bytes_per_param=lambda hyper: 1 + 4 / hyper["block_size"])
class PowerStepInt8(BlockwiseOptimizer):
    """PowerStep, equations (21) to (25): only the momentum is stored in low precision.

    The power is taken of the momentum before it is coded (section 4; appendix E writes the coded
    one). The state is ``momentum_codes``, a byte an element, and ``momentum_scales``, a float32 a
    block: 1.03125 bytes a parameter at block 128.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        gamma: Momentum coefficient γ in [0, 1); the paper's 0.9.
        beta: Power exponent β in [0, 1]; the paper's 0.1.
        weight_decay: Decoupled weight decay λ >= 0.
        block_size: Elements that share a scale, >= 1; the paper's 128.
        code: "dynamic" (the code that the paper cites) or "linear" (the one its code has).
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {
        "gamma": Interval("[0, 1)"),
        "beta": Interval("[0, 1]"),
        "block_size": PositiveInt(),
        "code": Choice(("dynamic", "linear")),
    }

    def __init__(
        self,
        params: Iterable,
        lr: float | Tensor = 1e-3,
        *,
        gamma: float = 0.9,
        beta: float = 0.1,
        weight_decay: float = 0.0,
        block_size: int = 128,
        code: str = "dynamic",
        implementation: str = "auto",
    ):
        super().__init__(
            params,
            lr=lr,
            gamma=gamma,
            beta=beta,
            weight_decay=weight_decay,
            block_size=block_size,
            code=code,
            implementation=implementation,
        )

    def init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """m_0 = 0."""
        codes, scales = zero_blocks(local(p), block_code(group["code"]), group["block_size"])
        return {"momentum_codes": codes, "momentum_scales": scales}

    @staticmethod
    def update(
        p, g, momentum_codes, momentum_scales, *, lr, gamma, beta, weight_decay, block_size, code
    ):
        """Take one step on one flat tensor, in place on ``p`` and the state."""
        q = block_code(code)
        m = dequantize(momentum_codes, momentum_scales, q, block_size)
        m.mul_(gamma).add_(g)  # (22): γ·dequantize(m) + g
        quantize_into(m, momentum_codes, momentum_scales, q, block_size)  # (23)
        u = signed_power(m, beta)  # (24), of m as it was before coding
        descend(p, u, lr, weight_decay)  # (25)

    def fused_update(self, p, g, momentum_codes, momentum_scales, *, gamma, beta, code, **options):
        """``update`` over lists of tensors in one kernel launch."""
        m = Moment(momentum_codes, momentum_scales, code)
        fused_step(self, "powerstep", p, g, m, coefficients=(gamma, beta), **options)


@register("powerstep_int8_released", bytes_per_param=lambda hyper: 1 + 4 / hyper["block_size"])
class PowerStepInt8Released(BlockwiseOptimizer):
    """PowerStep int8 as in the authors' code: linear, with a scale raised by 1e-12 for coding.

    Scales have the parameter's dtype. (The released step also leaves the update in ``p.grad``;
    this one does not.)

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        gamma: Momentum coefficient γ in [0, 1); the paper's 0.9.
        beta: Power exponent β in [0, 1]; the paper's 0.1.
        weight_decay: Decoupled weight decay λ >= 0.
        block_size: Elements that share a scale, >= 1; the paper's 128.
        implementation: "auto", "reference" or "foreach".
    """

    rules: ClassVar = {
        "gamma": Interval("[0, 1)"),
        "beta": Interval("[0, 1]"),
        "block_size": PositiveInt(),
    }

    def __init__(
        self,
        params: Iterable,
        lr: float | Tensor = 1e-3,
        *,
        gamma: float = 0.9,
        beta: float = 0.1,
        weight_decay: float = 0.0,
        block_size: int = 128,
        implementation: str = "auto",
    ):
        super().__init__(
            params,
            lr=lr,
            gamma=gamma,
            beta=beta,
            weight_decay=weight_decay,
            block_size=block_size,
            implementation=implementation,
        )

    def init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """m_0 = 0."""
        codes, scales = zero_blocks(local(p), LINEAR, group["block_size"], p.dtype)
        return {"momentum_codes": codes, "momentum_scales": scales}

    @staticmethod
    def update(p, g, momentum_codes, momentum_scales, *, lr, gamma, beta, weight_decay, block_size):
        """Take one step on one flat tensor, in place on ``p`` and the state."""
        m = dequantize(momentum_codes, momentum_scales, LINEAR, block_size)
        m.mul_(gamma).add_(g)
        quantize_into(m, momentum_codes, momentum_scales, LINEAR, block_size, added=RELEASED_ADDED)
        descend(p, signed_power(m, beta), lr, weight_decay)
