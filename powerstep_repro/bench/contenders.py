"""Who takes part in the optimizer benchmark: ours by implementation, and peers where installed."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from powerstep_repro.errors import UserError
from powerstep_repro.optim import create

LR, WEIGHT_DECAY = 1e-4, 0.1

# Bytes of state a parameter of peers that wrap it: a code, and a scale (FlashOptim's fp16) a block.
TORCHAO_STATE, FLASH_STATE = 1 + 4 / 256, 1 + 2 / 32


@dataclass(frozen=True)
class Contender:
    """An optimizer in one implementation.

    Args:
        label: Its row in the table.
        make: From parameters to the optimizer.
        state_bytes: Bytes of state a parameter, each read and written once a step; None if they
            can be counted.
    """

    label: str
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
    state_bytes: float | None = None


def ours(name: str, implementation: str, note: str = "", **hyperparameters) -> Contender:
    """Return an optimizer of the registry."""

    def make(params):
        return create(
            name, params, lr=LR, weight_decay=WEIGHT_DECAY,
            implementation=implementation, **hyperparameters,
        )  # fmt: skip

    title = f"{name} {note}".strip()
    return Contender(f"{title} ({implementation})", make)


def contenders(device: torch.device, fused: bool, released: Path | None) -> list[Contender]:
    """Return all that can run on ``device``; the first two are torch's own AdamW."""
    rows = [ours("adamw", "fused"), ours("adamw", "foreach")]
    dynamic, linear = {"code": "dynamic"}, {"code": "linear"}
    if fused:
        rows += [
            ours("powerstep", "fused"),
            ours("powerstep_int8", "fused", "dynamic", **dynamic),
            ours("powerstep_int8", "fused", "linear", **linear),
            ours("signsgd", "fused"),
            ours("pbsgdm", "fused"),
            ours("adams", "fused"),
            ours("adamw_int8", "fused", "dynamic", **dynamic),
            ours("adamw_int8", "fused", "linear", **linear),
        ]
    rows += [
        ours("powerstep", "foreach"),
        ours("powerstep_int8", "foreach", "dynamic", **dynamic),
        ours("powerstep_int8", "foreach", "linear", **linear),
        ours("adamw_int8", "foreach", "dynamic", **dynamic),
    ]
    if device.type == "cpu":
        rows += [ours("powerstep", "reference"), ours("signsgd", "foreach")]
    if released is not None:
        rows += _released(released)
    if device.type == "cuda":
        rows += _installed()
    return rows


def _released(folder: Path) -> list[Contender]:
    """Return the authors' optimizers from a clone of their repository."""
    path = folder / "nanoGPT" / "optim.py"
    if not path.is_file():
        raise UserError(f"--released {folder}: there is no nanoGPT/optim.py in that folder")
    spec = importlib.util.spec_from_file_location("powerstep_released", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["powerstep_released"] = module
    spec.loader.exec_module(module)
    return [
        _peer(f"released {name}", getattr(module, name))
        for name in ("PowerStep", "PowerStepInt8", "AdamWInt8")
    ]


def _installed() -> list[Contender]:
    """Return the 8-bit optimizers of other packages that are there."""
    rows = []
    if importlib.util.find_spec("bitsandbytes"):
        optim = importlib.import_module("bitsandbytes.optim")
        rows.append(_peer("bitsandbytes AdamW8bit", optim.AdamW8bit))
        rows.append(_peer("bitsandbytes Lion8bit", optim.Lion8bit))
    if importlib.util.find_spec("torchao"):
        optim = importlib.import_module("torchao.optim")
        rows.append(_peer("torchao AdamW8bit", optim.AdamW8bit, 2 * TORCHAO_STATE))
    if importlib.util.find_spec("flashoptim"):
        package = importlib.import_module("flashoptim")
        options = {"master_weight_bits": None}  # fp32 parameters are their own master copy
        rows.append(_peer("FlashOptim FlashAdamW", package.FlashAdamW, 2 * FLASH_STATE, **options))
        rows.append(_peer("FlashOptim FlashLion", package.FlashLion, FLASH_STATE, **options))
    return rows


def _peer(label: str, factory: Callable, state_bytes: float | None = None, **options) -> Contender:
    def make(params):
        return factory(params, lr=LR, weight_decay=WEIGHT_DECAY, **options)

    return Contender(label, make, state_bytes)
