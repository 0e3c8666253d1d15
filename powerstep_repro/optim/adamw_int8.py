"""AdamW with both moments in blocks of 8-bit codes, with a sound code and as released."""

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from powerstep_repro.optim.blockwise import BlockwiseOptimizer
from powerstep_repro.optim.functional import bias_correction, descend
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
from powerstep_repro.optim.rules import Choice, Interval, Pair, PositiveInt
from powerstep_repro.optim.tensors import local, step_counter


@register("adamw_int8", bytes_per_param=lambda hyper: 2 * (1 + 4 / hyper["block_size"]))
class AdamWInt8(BlockwiseOptimizer):
    """AdamW that stores both moments in low precision and updates from the ones not yet coded.

    m has a signed code, v an unsigned one. The state is ``m_codes``, ``m_scales``, ``v_codes``,
    ``v_scales`` and a counter: 2.0625 bytes a parameter at block 128.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        betas: Coefficients (β1, β2), each in [0, 1); the paper's (0.9, 0.95).
        eps: Added to the root, ε >= 0; the paper's 1e-8.
        weight_decay: Decoupled weight decay λ >= 0.
        block_size: Elements that share a scale, >= 1; the paper's 128.
        code: "dynamic" or "linear", for both moments.
        code_m: The code of m, if another.
        code_v: The code of v, if another.
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {
        "betas": Pair(Interval("[0, 1)")),
        "eps": Interval("[0, inf)"),
        "block_size": PositiveInt(),
        "code": Choice(("dynamic", "linear")),
        "code_m": Choice(("dynamic", "linear", None)),
        "code_v": Choice(("dynamic", "linear", None)),
    }

    def __init__(
        self,
        params: Iterable,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        block_size: int = 128,
        code: str = "dynamic",
        code_m: str | None = None,
        code_v: str | None = None,
        implementation: str = "auto",
    ):
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            block_size=block_size,
            code=code,
            code_m=code_m,
            code_v=code_v,
            implementation=implementation,
        )

    def init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """m_0 = v_0 = 0, t = 0."""
        code_m = block_code(group["code_m"] or group["code"])
        code_v = block_code(group["code_v"] or group["code"], signed=False)
        m_codes, m_scales = zero_blocks(local(p), code_m, group["block_size"])
        v_codes, v_scales = zero_blocks(local(p), code_v, group["block_size"])
        return {
            "m_codes": m_codes,
            "m_scales": m_scales,
            "v_codes": v_codes,
            "v_scales": v_scales,
            "step": step_counter(p),
        }

    @staticmethod
    def update(
        p, g, m_codes, m_scales, v_codes, v_scales, step,
        *, lr, betas, eps, weight_decay, block_size, code, code_m, code_v,
    ):  # fmt: skip
        """Take step t = ``step`` on one flat tensor, in place on ``p`` and the state."""
        code_m = block_code(code_m or code)
        code_v = block_code(code_v or code, signed=False)
        m = dequantize(m_codes, m_scales, code_m, block_size)
        v = dequantize(v_codes, v_scales, code_v, block_size)
        u = adam_direction(g, m, v, step, betas, eps)
        quantize_into(m, m_codes, m_scales, code_m, block_size)
        quantize_into(v, v_codes, v_scales, code_v, block_size)
        descend(p, u, lr, weight_decay)

    def fused_update(
        self, p, g, m_codes, m_scales, v_codes, v_scales, step,
        *, betas, code, code_m, code_v, **options,
    ):  # fmt: skip
        """``update`` over lists of tensors in one kernel launch."""
        m = Moment(m_codes, m_scales, code_m or code)
        v = Moment(v_codes, v_scales, code_v or code)
        fused_step(self, "adamw", p, g, m, v, coefficients=betas, steps=step, **options)


def adam_direction(
    g: Tensor, m: Tensor, v: Tensor, step: Tensor, betas: tuple[float, float], eps: float
) -> Tensor:
    """Advance both moments in place and return Adam's u."""
    beta1, beta2 = betas
    m.mul_(beta1).add_(g, alpha=1 - beta1)  # m ← β1·m + (1 - β1)g
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)  # v ← β2·v + (1 - β2)g²
    root = (v / bias_correction(step, beta2)).sqrt_()
    return (m / bias_correction(step, beta1)).div_(root.add_(eps))


@register("adamw_int8_released", bytes_per_param=lambda hyper: 2 * (1 + 4 / hyper["block_size"]))
class AdamWInt8Released(BlockwiseOptimizer):
    """AdamW int8 as in the authors' code, whose collapse is that of its code for v.

    Both moments are linear and *signed*, so v has 127 levels of the 255 it could have: whatever
    is below 1/254 of its block's maximum becomes 0, and the next update is bounded by 1/ε alone.
    Scales have the parameter's dtype and are raised by 1e-12 for coding only, which shrinks v
    in blocks whose maximum is that small. (Released defaults are β2 = 0.999 and λ = 0.01; here
    they are the paper's, as in all its runs.)

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        betas: Coefficients (β1, β2), each in [0, 1).
        eps: Added to the root, ε >= 0.
        weight_decay: Decoupled weight decay λ >= 0.
        block_size: Elements that share a scale, >= 1.
        implementation: "auto", "reference" or "foreach".
    """

    rules: ClassVar = {
        "betas": Pair(Interval("[0, 1)")),
        "eps": Interval("[0, inf)"),
        "block_size": PositiveInt(),
    }

    def __init__(
        self,
        params: Iterable,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        block_size: int = 128,
        implementation: str = "auto",
    ):
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            block_size=block_size,
            implementation=implementation,
        )

    def init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """m_0 = v_0 = 0, t = 0."""
        m_codes, m_scales = zero_blocks(local(p), LINEAR, group["block_size"], p.dtype)
        v_codes, v_scales = zero_blocks(local(p), LINEAR, group["block_size"], p.dtype)
        return {
            "m_codes": m_codes,
            "m_scales": m_scales,
            "v_codes": v_codes,
            "v_scales": v_scales,
            "step": step_counter(p),
        }

    @staticmethod
    def update(
        p, g, m_codes, m_scales, v_codes, v_scales, step,
        *, lr, betas, eps, weight_decay, block_size,
    ):  # fmt: skip
        """Take step t = ``step`` on one flat tensor, in place on ``p`` and the state."""
        m = dequantize(m_codes, m_scales, LINEAR, block_size)
        v = dequantize(v_codes, v_scales, LINEAR, block_size)
        u = adam_direction(g, m, v, step, betas, eps)
        quantize_into(m, m_codes, m_scales, LINEAR, block_size, added=RELEASED_ADDED)
        quantize_into(v, v_codes, v_scales, LINEAR, block_size, added=RELEASED_ADDED)
        descend(p, u, lr, weight_decay)
