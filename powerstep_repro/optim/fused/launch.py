"""Launching the kernel: from lists of tensors and a rule's numbers to one kernel call."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import triton.language as tl
from torch import Tensor

from powerstep_repro.optim.fused import Moment
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


@dataclass(frozen=True)
class Tuning:
    """How the kernel is cut and compiled.

    Args:
        block: Elements a program: a power of two, at least ``TAIL``.
        warps: Warps a program.
        evict: Eviction policy of loads and stores, "" or "evict_first".
        fast: Hardware instructions in the signed power: 0 none, 1 log2, 2 log2 and exp2; for
            β <= 1/2, where log2 adds 1.4 ulp at most.
    """

    block: int = 2048
    warps: int = 4
    evict: str = ""
    fast: int = 0


# By the code of the first moment ("none" is fp32), and for the rule that has two quantized ones.
# The fastest on an H100 (docs/performance.md). Only the dynamic code is worth a less exact power.
TUNING = {
    "none": Tuning(block=1024),
    "linear": Tuning(block=4096, warps=8),
    "dynamic": Tuning(fast=1),
    "adamw": Tuning(warps=8),
}


# Tables of past launches: they go with their optimizer.
_TABLES: WeakKeyDictionary[torch.optim.Optimizer, dict[tuple, Table]] = WeakKeyDictionary()


@torch._disable_dynamo  # addresses mean nothing to a tracer
def step(
    owner: torch.optim.Optimizer,
    rule: str,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    m: Moment,
    v: Moment | None = None,
    *,
    lr: float | Tensor,
    weight_decay: float,
    coefficients: tuple[float, float],
    eps: float = 0.0,
    steps: Sequence[Tensor] = (),
    block_size: int = 128,
    grad_factor: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Step all tensors in place: one launch for those of one dtype.

    Args:
        owner: The optimizer; its tables are kept from step to step.
        rule: "powerstep" or "pbsgdm", with coefficients (γ, β); "adams" or "adamw", with (β1, β2).
        params: Parameters on one device, of float32, bfloat16 or float16, any shape and strides.
        grads: Their gradients.
        m: First moment.
        v: Second moment, for "adamw"; its codes are unsigned.
        lr: Learning rate: a number, or a tensor on the device, which is not read here.
        weight_decay: Decoupled weight decay.
        coefficients: See ``rule``.
        eps: Added to the root of the second moment.
        steps: For "adamw": the number of this step, one fp32 scalar tensor each.
        block_size: Elements that share a scale.
        grad_factor: One fp32 number on the device; gradients are multiplied by it as they are read.
        found_inf: One fp32 number on the device; if it is not 0 there, nothing is changed.
    """
    # The kernel walks memory in the elements' logical order; what is strided goes through a copy.
    ps = [p if p.is_contiguous() else p.contiguous() for p in params]
    gs = [g if g.is_contiguous() else g.contiguous() for g in grads]
    if isinstance(lr, Tensor):
        decay, lr = (1 - lr * weight_decay).float(), lr.float()
    else:
        decay = 1 - lr * weight_decay
    numbers = {"lr": lr, "decay": decay, "factor": grad_factor, "found": found_inf}
    a, b = coefficients
    numbers |= {"a": a, "b": b, "c": 1 - a, "d": 1 - b, "eps": eps}
    numbers |= {"log_a": _log(a), "log_b": _log(b)}
    tuning = TUNING["adamw" if rule == "adamw" else m.code]
    device = ps[0].device
    constants = {
        "RULE": rule,
        "CODE_M": m.code,
        "CODE_V": v.code if v else "none",
        "TYPE_M": TYPES[m.values[0].dtype],
        "TYPE_V": TYPES[v.values[0].dtype] if v else tl.float32,
        "POWER": _power_kind(b) if rule in ("powerstep", "pbsgdm") else "identity",
        "LR_TENSOR": isinstance(lr, Tensor),
        "FACTOR": grad_factor is not None,
        "FOUND_INF": found_inf is not None,
        "BLOCK": tuning.block,
        "ROW": block_size,
        "EVICT": tuning.evict,
        "FAST": tuning.fast if b <= 0.5 else 0,
        "TAIL": TAIL,
        "num_warps": tuning.warps,
        "enable_fp_fusion": False,
    }
    # Rows of the pointer table, in the kernel's order.
    second = (v.values, v.scales) if v else ((), ())
    parts = (ps, gs, m.values, m.scales, *second, steps)

    for chosen in _by_dtype(ps, gs):
        rows = parts if chosen is None else [[r[i] for i in chosen] if r else r for r in parts]
        table, pointers = _table(owner, rows, tuning.block, device)
        with torch.cuda.device_of(ps[0]):
            step_kernel[(table.programs,)](
                table.chunks, table.numels, pointers, len(rows[0]),
                table_m=dynamic_map(True, device) if m.code == "dynamic" else None,
                table_v=dynamic_map(False, device) if v and v.code == "dynamic" else None,
                TYPE_P=TYPES[rows[0][0].dtype], TYPE_G=TYPES[rows[1][0].dtype],
                VECTOR=4 if table.aligned else 1,
                **numbers, **constants,
            )  # fmt: skip
    for p, stepped in zip(params, ps, strict=True):
        if stepped is not p:
            p.copy_(stepped)


def _table(
    owner: torch.optim.Optimizer, rows: Sequence[Sequence[Tensor]], block: int, device: torch.device
) -> tuple[Table, Tensor]:
    tables = _TABLES.setdefault(owner, {})
    numels = tuple(p.numel() for p in rows[0])
    key = (block, device, numels)
    if key not in tables:
        tables[key] = Table(numels, len(rows), block, device)
    missing = [0] * len(numels)
    return tables[key], tables[key].pointers(
        [[t.data_ptr() for t in row] if row else missing for row in rows]
    )


def _by_dtype(ps: Sequence[Tensor], gs: Sequence[Tensor]) -> list[list[int] | None]:
    """Return the indices of tensors by dtype of parameter and gradient; None for all."""
    if len({p.dtype for p in ps}) == 1 == len({g.dtype for g in gs}):
        return [None]
    kinds: dict[tuple[torch.dtype, torch.dtype], list[int]] = {}
    for i, (p, g) in enumerate(zip(ps, gs, strict=True)):
        kinds.setdefault((p.dtype, g.dtype), []).append(i)
    return list(kinds.values())


def _power_kind(beta: float) -> str:
    if beta in (0, 1):
        return "identity" if beta else "sign"
    return "root" if beta <= 0.8 else "any"


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0 else -math.inf
