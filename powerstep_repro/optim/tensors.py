"""Tensors as the optimizers see them: shards, and states in the dtype of the arithmetic."""

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


def local(t: Tensor) -> Tensor:
    """Return the local shard of a DTensor: every rule here works element by element or block."""
    # Looking up an attribute that is not there would take most of a fused step's time.
    return t if type(t) in _PLAIN else getattr(t, "_local_tensor", t)


def math_dtype(p: Tensor) -> torch.dtype:
    """Return the dtype of arithmetic and state for ``p``: float64 for float64, else float32."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def zeros_like_state(p: Tensor) -> Tensor:
    """Return zeros in the shape of ``p``: contiguous, in the arithmetic's dtype."""
    return torch.zeros_like(p, dtype=math_dtype(p), memory_format=torch.contiguous_format)


def step_counter(p: Tensor) -> Tensor:
    """Return a counter of steps on the device of ``p``, where reading it costs no sync."""
    return torch.zeros((), dtype=torch.float32, device=p.device)
