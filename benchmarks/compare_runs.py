"""What two runs left, held against each other to the last bit; for the benchmarks beside it."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TIMING = ("step_ms", "tokens_per_s")
OUTCOME = ("status", "steps", "final_val_loss", "final_train_loss", "diverged_at", "blown_up_at")


def left(run: Path) -> dict[str, Any]:
    """What a run left, apart from times: rows, last evaluation, outcome, newest checkpoint.

    Returns:
        Flat, by dotted name: numbers, words and tensors.
    """
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [
        {key: value for key, value in json.loads(line).items() if key not in TIMING}
        for line in lines
    ]
    summary = json.loads((run / "summary.json").read_text())
    nested = {"row": dict(enumerate(rows, start=1))}
    nested |= {"outcome": {key: summary[key] for key in OUTCOME}}
    if (run / "windows.json").is_file():
        nested["windows"] = json.loads((run / "windows.json").read_text())
    if checkpoints := sorted(run.glob("checkpoints/step-*-*.pt")):
        nested["checkpoint"] = torch.load(checkpoints[-1], weights_only=True)["state"]
    return dict(_flat(nested))


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Say in which of two runs' leavings they differ, tensors with their largest difference."""
    found = [f"{name}: in one only" for name in sorted(a.keys() ^ b.keys())]
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            if x.dtype != y.dtype or x.shape != y.shape:
                found.append(f"{name}: {x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}")
            elif not torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8)):
                largest = (x.double() - y.double()).abs().max().item()
                found.append(f"{name}: differs by up to {largest:.3g}")
        elif not (x == y or (_is_nan(x) and _is_nan(y))):
            found.append(f"{name}: {x!r} and {y!r}")
    return sorted(found)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _flat(value: Any, name: str = ""):
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
