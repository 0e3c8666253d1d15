"""DeepSeek-V2-Lite (DeepSeek-AI 2024), from ``transformers``.

Multi-head latent attention without a query rank, rotary positions without the long-context
scaling that the published weights got after pre-training, greedy routing by softmax scores whose
top-k is not normalised.
"""

from collections.abc import Mapping
from typing import Any

from transformers.models.deepseek_v2 import DeepseekV2Config, DeepseekV2ForCausalLM

from powerstep_repro.models.decoder import Decoder, shared_settings


def build(model: Mapping[str, Any]) -> Decoder:
    """Build a DeepSeek-V2-Lite from a config's ``model`` section."""
    config = DeepseekV2Config(
        **shared_settings(model),
        num_key_value_heads=model["heads"],
        q_lora_rank=None,
        kv_lora_rank=model["kv_rank"],
        qk_nope_head_dim=model["nope_dim"],
        qk_rope_head_dim=model["rope_dim"],
        v_head_dim=model["v_dim"],
        intermediate_size=model["ffn"],
        first_k_dense_replace=model["dense_layers"],
        n_routed_experts=model["experts"],
        num_experts_per_tok=model["experts_per_token"],
        moe_intermediate_size=model["expert_ffn"],
        n_shared_experts=model["shared_experts"],
        topk_method="greedy",
        routed_scaling_factor=1.0,
    )
    return Decoder(
        DeepseekV2ForCausalLM(config),
        attention_width=model["nope_dim"] + model["rope_dim"] + model["v_dim"],
        experts_per_token=model["experts_per_token"],
        aux_loss_coef=model["aux_loss_coef"],
    )
