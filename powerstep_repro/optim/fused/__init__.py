"""Fused steps: all tensors of a group in one kernel launch, each element moved once.

The kernels are written in Triton, which comes with torch's CUDA wheels. Without a GPU they run
under Triton's interpreter (``TRITON_INTERPRET=1`` in the environment before the first import): far
too slow to train with, exact enough to test with. Importing this package does not import Triton.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK_SIZES = (32, 64, 128, 256, 512)


@cache
def available(
    device: torch.device, dtype: torch.dtype = torch.float32, block_size: int = 128
) -> bool:
    """Say whether there is a fused step.

    Args:
        device: A CUDA device where Triton is installed; the CPU under Triton's interpreter.
        dtype: Of the parameters: float32, bfloat16 or float16.
        block_size: Elements that share a scale: a power of two from 32 to 512.
    """
    if dtype not in DTYPES or block_size not in BLOCK_SIZES:
        return False
    if importlib.util.find_spec("triton") is None:
        return False
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        return device.type == "cpu"
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)


def capturing(device: torch.device) -> bool:
    """Say whether a CUDA graph is being captured, which keeps the addresses it sees."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Kernel(NamedTuple):
    """How an optimizer uses the kernel: a rule of it, and its coefficients of hyperparameters."""

    rule: str
    coefficients: Callable[[dict[str, Any]], tuple[float, float]]


class Moment(NamedTuple):
    """One moment of a list of tensors: contiguous fp32 values, or codes and their fp32 scales."""

    values: Sequence[Tensor]
    scales: Sequence[Tensor] = ()
    code: str = "none"  # or "linear", "dynamic"


def step(*args: Any, **kwargs: Any) -> Any:
    """Prepare a fused step: ``launch.Step``, whose module needs Triton."""
    from powerstep_repro.optim.fused import launch

    return launch.Step(*args, **kwargs)
