"""Launching the kernel: from lists of tensors and a rule's numbers to one kernel call."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from operator import is_
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from powerstep_repro.optim.fused import Moment, capturing
from powerstep_repro.optim.fused.kernel import step_kernel
from powerstep_repro.optim.fused.tables import Table
from powerstep_repro.optim.quantize import dynamic_map

TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
}

# Elements that a tensor's last, masked block takes at a time.
TAIL = 512


class Tuning(NamedTuple):
    """How the kernel is cut and compiled."""

    block: int = 2048  # elements a program: a power of two, at least ``TAIL``
    warps: int = 4
    fast: bool = False  # the hardware's log2, for β <= 1/2, where it adds 1.4 ulp at most


# By the code of the first moment ("none" is fp32), and for the rule that has two quantized ones.
# The fastest on an H100 (docs/performance.md). Only the dynamic code is worth a less exact power.
TUNING = {
    "none": Tuning(block=1024),
    "linear": Tuning(block=4096, warps=8),
    "dynamic": Tuning(fast=True),
    "adamw": Tuning(warps=8),
}


class Step:
    """A fused step of certain tensors: what it takes does not change as long as they stay in place.

    Args:
        rule: "powerstep" or "pbsgdm", with coefficients (γ, β); "adams" or "adamw", with (β1, β2).
        params: Parameters on one device, of float32, bfloat16 or float16, any shape and strides.
        grads: Their gradients.
        m: First moment.
        v: Second moment, for "adamw"; its codes are unsigned.
        steps: For "adamw": the number of this step, one fp32 scalar tensor each.
        block_size: Elements that share a scale.
        tables: Tables of earlier steps of the same group, which gets the ones made here. They must
            live as long as a CUDA graph that was captured over them.
    """

    def __init__(
        self,
        rule: str,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        m: Moment,
        v: Moment | None = None,
        *,
        steps: Sequence[Tensor] = (),
        block_size: int = 128,
        tables: dict[tuple, Table],
    ):
        self.device = params[0].device
        # The kernel walks memory in the elements' logical order; what is strided goes through a
        # copy, and then this step is good for once.
        ps = [p if p.is_contiguous() else p.contiguous() for p in params]
        gs = [g if g.is_contiguous() else g.contiguous() for g in grads]
        self._copied = [(p, q) for p, q in zip(params, ps, strict=True) if q is not p]
        in_place = all(map(is_, params, ps)) and all(map(is_, grads, gs))
        self.lasts = in_place and not capturing(self.device)  # a graph's addresses are its own
        self._held = None if in_place else gs
        self._rule, self._tuning = rule, TUNING["adamw" if rule == "adamw" else m.code]
        self._fixed = {
            "RULE": rule,
            "CODE_M": m.code,
            "CODE_V": v.code if v else "none",
            "TYPE_M": TYPES[m.values[0].dtype],
            "TYPE_V": TYPES[v.values[0].dtype] if v else tl.float32,
            "BLOCK": self._tuning.block,
            "ROW": block_size,
            "TAIL": TAIL,
            "num_warps": self._tuning.warps,
            "enable_fp_fusion": False,
            "table_m": dynamic_map(True, self.device) if m.code == "dynamic" else None,
            "table_v": dynamic_map(False, self.device) if v and v.code == "dynamic" else None,
        }
        # Rows of the pointer table, in the kernel's order.
        second = (v.values, v.scales) if v else ((), ())
        parts = (ps, gs, m.values, m.scales, *second, steps)
        # One launch for the tensors of one dtype, whose gradients have one dtype.
        kinds: dict[tuple[torch.dtype, torch.dtype], list[int]] = {}
        for i, (p, g) in enumerate(zip(ps, gs, strict=True)):
            kinds.setdefault((p.dtype, g.dtype), []).append(i)
        self._launches: list[tuple[int, tuple, dict[str, Any]]] = []
        for (p_type, g_type), chosen in kinds.items():
            numels = tuple(ps[i].numel() for i in chosen)
            key = (rule, m.code, p_type, g_type, self._tuning.block, self.device, numels)
            if key not in tables:
                tables[key] = Table(numels, len(parts), self._tuning.block, self.device)
            table, missing = tables[key], [0] * len(chosen)
            pointers = table.pointers(
                [[part[i].data_ptr() for i in chosen] if part else missing for part in parts]
            )
            vector = 4 if table.aligned else 1
            types = {"TYPE_P": TYPES[p_type], "TYPE_G": TYPES[g_type], "VECTOR": vector}
            where = (table.chunks, table.numels, pointers, len(chosen))
            self._launches.append((table.programs, where, types))
        self._settings: tuple = ()
        self._constants: dict[str, Any] = {}

    def take(
        self,
        *,
        lr: float | Tensor,
        weight_decay: float,
        coefficients: tuple[float, float],
        eps: float = 0.0,
        grad_factor: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """Step all tensors in place: one launch for those of one dtype.

        Args:
            lr: Learning rate: a number, or a tensor on the device, which is not read here.
            weight_decay: Decoupled weight decay.
            coefficients: See ``rule``.
            eps: Added to the root of the second moment.
            grad_factor: One fp32 number on the device; gradients are multiplied by it as they are
                read.
            found_inf: One fp32 number on the device; if it is not 0 there, nothing is changed.
        """
        a, b = coefficients
        tensor_lr = isinstance(lr, Tensor)
        settings = (a, b, eps, tensor_lr, grad_factor is None, found_inf is None)
        if settings != self._settings:
            self._settings = settings
            self._constants = {
                "a": a, "b": b, "c": 1 - a, "d": 1 - b, "eps": eps,
                "log_a": math.log(a) if a else -math.inf,
                "log_b": math.log(b) if b else -math.inf,
                "POWER": _power_kind(b) if self._rule in ("powerstep", "pbsgdm") else "identity",
                "LR_TENSOR": tensor_lr,
                "FACTOR": grad_factor is not None,
                "FOUND_INF": found_inf is not None,
                "FAST": self._tuning.fast and b <= 0.5,
                **self._fixed,
            }  # fmt: skip
        decay: Any = 1 - lr * weight_decay
        if isinstance(lr, Tensor):
            decay, lr = decay.float(), lr.float()
        other = self.device.type == "cuda" and torch.cuda.current_device() != self.device.index
        with torch.cuda.device(self.device) if other else nullcontext():
            for programs, where, types in self._launches:
                step_kernel[(programs,)](
                    *where, lr=lr, decay=decay, factor=grad_factor, found=found_inf,
                    **types, **self._constants,
                )  # fmt: skip
        for p, stepped in self._copied:
            p.copy_(stepped)


def _power_kind(beta: float) -> str:
    if beta in (0, 1):
        return "identity" if beta else "sign"
    return "root" if beta <= 0.8 else "any"
