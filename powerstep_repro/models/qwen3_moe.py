"""Qwen3 with routed experts in every layer (Yang et al. 2025), from ``transformers``."""

from collections.abc import Mapping
from typing import Any

from transformers.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM

from powerstep_repro.models.decoder import Decoder, shared_settings


def build(model: Mapping[str, Any]) -> Decoder:
    """Build a Qwen3-MoE from a config's ``model`` section."""
    config = Qwen3MoeConfig(
        **shared_settings(model),
        num_key_value_heads=model["kv_heads"],
        head_dim=model["head_dim"],
        num_experts=model["experts"],
        num_experts_per_tok=model["experts_per_token"],
        moe_intermediate_size=model["expert_ffn"],
        norm_topk_prob=model["normalize_top_k"],
        decoder_sparse_step=1,
        output_router_logits=False,
    )
    return Decoder(
        Qwen3MoeForCausalLM(config),
        attention_width=2 * model["head_dim"],
        experts_per_token=model["experts_per_token"],
        aux_loss_coef=model["aux_loss_coef"],
    )
