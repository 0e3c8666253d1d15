"""Which implementation of a step a group of parameters gets."""

from typing import Any

import torch

from powerstep_repro.optim import compiled, fused

IMPLEMENTATIONS = ("auto", "reference", "foreach", "fused")


def implementation(
    cls: Any, group: dict[str, Any], device: torch.device, dtype: torch.dtype
) -> str:
    """Return how ``cls`` steps ``group`` on ``device`` for arithmetic in ``dtype``.

    Args:
        cls: An optimizer's class, with ``foreach_update`` and ``fused_update`` or None.
        group: A parameter group, with the ``implementation`` that was asked for.
        device: Of the parameters.
        dtype: Of the arithmetic.

    Returns:
        "reference", "foreach", "fused" or, for ``fused`` on a CPU, "compiled"; never "auto".

    Raises:
        ValueError: ``fused`` was asked for, and there is none.
    """
    wanted = group["implementation"]
    if wanted in ("reference", "foreach"):
        return wanted
    available = cls.fused_update is not None and fused.available(
        device, dtype, group.get("block_size", 128)
    )
    if wanted == "auto":  # on the CPU nothing is interpreted or compiled unasked
        return "fused" if available and device.type != "cpu" else "foreach"
    if available:
        return "fused"
    of = f" with block_size={group['block_size']}" if "block_size" in group else ""
    needs = ""
    # Compiled, a quantized step would be slower than its list form.
    if device.type == "cpu" and cls.fused_update and cls.foreach_update and not of:
        if compiled.available():
            return "compiled"
        needs = ", where it needs a C++ compiler" if compiled.compiler() is None else ""
    elif device.type == "cpu" and of:
        needs = ", where quantized state has none"
    raise ValueError(
        f"implementation='fused' is not available for {cls.__name__}{of} and "
        f"{dtype} arithmetic on {device}{needs}; use auto, foreach or reference"
    )
