"""AdamW: torch's own, under this package's names for its settings."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.registry import register
from powerstep_repro.optim.rules import Interval, Pair, Rule

RULES: dict[str, Rule] = BaseOptimizer.rules | {
    "betas": Pair(Interval("[0, 1)")),
    "eps": Interval("[0, inf)"),
}


@register("adamw", bytes_per_param=8)
def adamw(
    params: ParamsT,
    lr: float | Tensor = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    implementation: str = "auto",
) -> torch.optim.AdamW:
    """Return ``torch.optim.AdamW`` with the paper's β1, β2 and ε.

    Its state has the parameter's dtype: 8 bytes a float32 parameter, 4 a bfloat16 one.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate η, a number or a one-element tensor.
        betas: Coefficients (β1, β2), each in [0, 1).
        eps: Added to the root, ε >= 0.
        weight_decay: Decoupled weight decay λ >= 0.
        implementation: "reference" (torch's per-tensor loop), "foreach", "fused", or "auto": fused
            if all parameters are on CUDA devices, torch's own choice elsewhere.
    """
    given = locals()
    values = {name: rule(name, given[name]) for name, rule in RULES.items()}
    # A tensor by itself is for torch to refuse.
    listed: Any = params if isinstance(params, Tensor) else list(params)
    flags: dict[str, dict[str, Any]] = {
        "auto": {"fused": True} if _all_on_cuda(listed) else {},
        "reference": {"foreach": False, "fused": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }
    return torch.optim.AdamW(listed, **flags[values.pop("implementation")], **values)


def _all_on_cuda(params: Any) -> bool:
    """Say so for tensors, (name, tensor) pairs and groups of either."""
    members = [m for p in params for m in (p["params"] if isinstance(p, dict) else [p])]
    tensors = [m[1] if isinstance(m, tuple) else m for m in members]
    return bool(tensors) and all(getattr(t, "is_cuda", False) for t in tensors)
