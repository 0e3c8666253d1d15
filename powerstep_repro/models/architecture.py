"""What each family's config must hold, and which shapes fit together. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from powerstep_repro.errors import UserError

_ATTENTION = ("layers", "hidden", "heads", "vocab_size")
_GROUPED = (*_ATTENTION, "kv_heads", "head_dim")
_EXPERTS = ("experts", "experts_per_token", "expert_ffn")

#: Family -> its keys that are positive whole numbers.
FAMILIES: dict[str, tuple[str, ...]] = {
    "gpt2": (*_ATTENTION, "context"),
    "qwen3": (*_GROUPED, "ffn"),
    "qwen3_moe": (*_GROUPED, *_EXPERTS),
    "deepseek_v2": (
        *_ATTENTION,
        *("kv_rank", "nope_dim", "rope_dim", "v_dim", "ffn", "dense_layers", "shared_experts"),
        *_EXPERTS,
    ),
}

#: Families whose feed-forward layers are mixtures of routed experts.
MOE_FAMILIES = ("qwen3_moe", "deepseek_v2")


def check(model: Mapping[str, Any]) -> None:
    """Raise unless ``model`` describes a network that can be built.

    Args:
        model: The ``model`` section of a config.

    Raises:
        UserError: names the key, its value and what is allowed.
    """
    family = model.get("family")
    if family not in FAMILIES:
        raise UserError(f"model.family={family!r} is unknown; choose from {', '.join(FAMILIES)}")
    for key in FAMILIES[family]:
        value = model.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"model.{key}={value!r} must be a whole number of at least 1")
    if family in ("gpt2", "deepseek_v2"):
        _divides(model, "heads", "hidden")
    else:
        _divides(model, "kv_heads", "heads")
    # Rotary position embeddings turn pairs of coordinates.
    for key in ("head_dim", "rope_dim"):
        if key in FAMILIES[family] and model[key] % 2:
            raise UserError(f"model.{key}={model[key]} must be even")
    if family in MOE_FAMILIES:
        if model["experts_per_token"] > model["experts"]:
            raise UserError(
                f"model.experts_per_token={model['experts_per_token']} must be at most "
                f"model.experts={model['experts']}"
            )
        coefficient = model.get("aux_loss_coef")
        if not isinstance(coefficient, int | float) or not 0 <= coefficient < float("inf"):
            raise UserError(f"model.aux_loss_coef={coefficient!r} must be a number from 0 up")
    if family == "deepseek_v2" and model["dense_layers"] >= model["layers"]:
        raise UserError(
            f"model.dense_layers={model['dense_layers']} must be below "
            f"model.layers={model['layers']}"
        )


def _divides(model: Mapping[str, Any], divisor: str, key: str) -> None:
    if model[key] % model[divisor]:
        raise UserError(
            f"model.{key}={model[key]} must be a multiple of model.{divisor}={model[divisor]}"
        )
