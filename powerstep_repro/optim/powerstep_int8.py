"""PowerStep with its momentum in blocks of 8-bit codes (paper, section 4), and as released."""

from typing import ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.powerstep import PowerStep
from powerstep_repro.optim.registry import register
from powerstep_repro.optim.rules import Choice, block_size, flag


@register("powerstep_int8")
class PowerStepInt8(PowerStep):
    """PowerStep, equations (21) to (25): only the momentum is stored in low precision.

    It is read back (21), takes PowerStep's step in full precision (22, 24, 25), and is coded again
    (23): the power is that of the momentum before it is coded (section 4; appendix E writes the
    coded one). The state is ``momentum_codes``, a byte an element, and ``momentum_scales``, a
    float32 a block: 1.03125 bytes a parameter at block 128.

    Args:
        params: Parameters or groups of them; a group with ``quantized=False`` has fp32 state.
        lr: Learning rate η, a number or a one-element tensor.
        gamma: Momentum coefficient γ in [0, 1); the paper's 0.9.
        beta: Power exponent β in [0, 1]; the paper's 0.1.
        weight_decay: Decoupled weight decay λ >= 0.
        block_size: Elements that share a scale, >= 1; the paper's 128.
        code: "dynamic" (the code that the paper cites) or "linear" (the one its code has).
        whole_blocks: Keep fp32 state for vectors, and for matrices whose rows are not whole blocks,
            so that no shard can cut a block of theirs.
        implementation: "auto", "reference", "foreach" or "fused".
    """

    rules: ClassVar = {
        "block_size": block_size,
        "code": Choice(("dynamic", "linear")),
        "whole_blocks": flag,
    }
    quantized = True

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, gamma: float = 0.9, beta: float = 0.1,
        weight_decay: float = 0.0, block_size: int = 128, code: str = "dynamic",
        whole_blocks: bool = False, implementation: str = "auto",
    ) -> None:  # fmt: skip
        BaseOptimizer.__init__(self, params, locals())


@register("powerstep_int8_released")
class PowerStepInt8Released(PowerStepInt8):
    """PowerStep int8 as in the authors' code: linear, with a scale raised by 1e-12 for coding.

    Scales have the parameter's dtype. (The released step also leaves the update in ``p.grad``;
    this one does not.)

    Takes what :class:`PowerStepInt8` takes, without ``code``; there is no fused step.
    """

    rules: ClassVar = {"code": Choice(("released",))}
    kernel = None

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, gamma: float = 0.9, beta: float = 0.1,
        weight_decay: float = 0.0, block_size: int = 128, whole_blocks: bool = False,
        implementation: str = "auto",
    ) -> None:  # fmt: skip
        BaseOptimizer.__init__(self, params, locals() | {"code": "released"})
