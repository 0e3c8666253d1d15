"""Qwen3, dense (Yang et al. 2025), from ``transformers``."""

from collections.abc import Mapping
from typing import Any

from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

from powerstep_repro.models.decoder import Decoder, shared_settings


def build(model: Mapping[str, Any]) -> Decoder:
    """Build a dense Qwen3 from a config's ``model`` section."""
    config = Qwen3Config(
        **shared_settings(model),
        num_key_value_heads=model["kv_heads"],
        head_dim=model["head_dim"],
        intermediate_size=model["ffn"],
    )
    return Decoder(Qwen3ForCausalLM(config), attention_width=2 * model["head_dim"])
