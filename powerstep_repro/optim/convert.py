"""State in another precision: fp32 to 8 bits and back, and between 8-bit codes and block sizes."""

from typing import Any

import torch
from torch import Tensor

from powerstep_repro.optim.base import BaseOptimizer
from powerstep_repro.optim.kept import STORAGE
from powerstep_repro.optim.loading import check_state_dict
from powerstep_repro.optim.quantize import block_code, dequantize, quantize
from powerstep_repro.optim.sharded import is_sharded, local

# What torch's Adam calls the moments that are m and v here, and whether they have a sign.
_TORCH = {"m": "exp_avg", "v": "exp_avg_sq"}
_ADAM = {"m": True, "v": False}


@torch.no_grad()
def convert_state(
    source: torch.optim.Optimizer | dict[str, Any], target: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return the state of one optimizer as another of the same rule keeps it.

    ::

        small = PowerStepInt8(model.parameters(), lr=6e-4)
        small.load_state_dict(convert_state(big, small))  # a PowerStep, or its state_dict()

    Each moment is read in full precision and stored as ``target`` stores it: as it was read, or
    coded by the code and in the blocks of its group (``whole_blocks`` and ``quantized=False`` are
    heeded). From 8 bits to float32 nothing is lost. What is coded differs from what was read by at
    most, in a block whose largest magnitude is s: s/254 (linear; s/510 for AdamW's v) or s/142
    (dynamic; s/284 for v); the released code has the bound of the linear one, signed, only where
    scales are float32 and far above its 1e-12. Between equal codes and block sizes bits are copied.

    Args:
        source: An optimizer, or what its ``state_dict()`` returned.
        target: An optimizer of the same parameters in the same groups and order; it is not
            changed. ``torch.optim.AdamW`` is of the rule of :class:`AdamWInt8`. Of sharded
            parameters (DTensor) each rank converts its own part, if both are sharded alike.

    Returns:
        A state dictionary that ``target.load_state_dict`` takes. Hyperparameters of the update are
        the source's, as on loading; those of storage (``code``, ``block_size``, …) the target's.

    Raises:
        ValueError: The two are of different rules, their groups or shapes differ, or one is
            sharded and the other not.
    """
    updates = [type(o).update for o in (source, target) if isinstance(o, BaseOptimizer)]
    if len(set(updates)) == 2:
        names = f"{type(source).__name__} and {type(target).__name__}"
        raise ValueError(f"{names} are different rules: the state of one is none for the other")
    saved = source.state_dict() if isinstance(source, torch.optim.Optimizer) else source
    check_state_dict(saved, target)
    result = target.state_dict()
    old_groups, new_groups = saved["param_groups"], result["param_groups"]
    sizes = [[len(g["params"]) for g in groups] for groups in (old_groups, new_groups)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"the state's groups have {sizes[0]} parameters, the target's {sizes[1]}")
    # Keys that are no parameter's stay, as on loading.
    left, result["state"] = dict(saved["state"]), {}
    for old, new, group in zip(old_groups, new_groups, target.param_groups, strict=True):
        # Of a MultiOptimizer, the member that steps the group.
        owner = getattr(target, "optimizers", {}).get(group.get("rule"), target)
        for key, new_key, p in zip(old["params"], new["params"], group["params"], strict=True):
            if state := left.pop(key, None):
                result["state"][new_key] = _converted(state, old, p.detach(), group, owner)
        kept = {*STORAGE, "quantized", "params", "param_names", "rule", "foreach", "fused"}
        new.update({k: v for k, v in old.items() if k in (new.keys() | {"initial_lr"}) - kept})
    result["state"].update(left)
    return result


def _converted(
    state: dict[str, Any], old: dict[str, Any], p: Tensor, group: dict[str, Any],
    owner: torch.optim.Optimizer,
) -> dict[str, Any]:  # fmt: skip
    """Return the state of ``p``; ``old`` is the group it comes from, ``group`` its own."""
    if isinstance(owner, BaseOptimizer):
        moments, fresh = owner.moments, owner.init_state(p, group)
    elif isinstance(owner, torch.optim.Adam) and not group["amsgrad"]:
        moments = _ADAM
        fresh = {_TORCH[name]: torch.zeros_like(p) for name in moments}
        fresh["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
    else:
        raise ValueError(f"{type(owner).__name__} is none of the optimizers that can be converted")
    rest = dict(state)
    for name, signed in moments.items():
        stored = _taken(rest, name, p, old, owner)
        code = None
        if f"{name}_codes" in fresh:
            code = block_code(group.get(f"code_{name}") or group["code"], signed=signed)
        if len(stored) == 2:
            old_code = block_code(old.get(f"code_{name}") or old["code"], signed=signed)
            if code == old_code and group["block_size"] == old["block_size"]:
                _put(fresh, [f"{name}_codes", f"{name}_scales"], stored)
                continue
            value = dequantize(stored[0], stored[1], old_code, old["block_size"])
        else:
            (value,) = stored
        if code is None:
            _put(fresh, [name if name in fresh else _TORCH[name]], [value])
        else:
            coded = quantize(value, code, group["block_size"])
            _put(fresh, [f"{name}_codes", f"{name}_scales"], coded)
    if "step" in fresh:
        if "step" not in rest:
            raise ValueError(f"the state has no step, which {type(owner).__name__} counts")
        fresh["step"].fill_(float(rest.pop("step")))
    return {**rest, **fresh}  # the user's own keys stay


def _taken(
    rest: dict[str, Any], name: str, p: Tensor, old: dict[str, Any], owner: torch.optim.Optimizer
) -> list[Tensor]:
    """Take a moment out of a state: [values] or [codes, scales], of this rank."""
    for keys in ([name], [f"{name}_codes", f"{name}_scales"], [_TORCH.get(name, name)]):
        if rest.keys() >= set(keys):
            found = [rest.pop(key) for key in keys]
            values = found[0]
            flat = values.ndim == 1 and not is_sharded(p)  # as codes once were
            fits = values.shape == p.shape or (flat and values.numel() == p.numel())
            if not fits or is_sharded(values) != is_sharded(p):
                how = ["a whole", "a sharded"]
                raise ValueError(
                    f"{keys[0]} is {how[is_sharded(values)]} tensor of shape "
                    f"{tuple(values.shape)}, the parameter {how[is_sharded(p)]} one of "
                    f"{tuple(p.shape)}"
                )
            parts = [local(t).to(p.device) for t in found]
            return [parts[0].view(local(p).shape), *parts[1:]]
    raise ValueError(
        f"{type(owner).__name__} keeps {name}; the state is another rule's: it holds "
        f"{', '.join(map(str, rest))}"
    )


def _put(fresh: dict[str, Any], keys: list[str], values: Any) -> None:
    for key, value in zip(keys, values, strict=True):
        held = local(fresh[key])
        held.copy_(value.view(held.shape))
