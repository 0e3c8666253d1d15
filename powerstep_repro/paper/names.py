"""How the paper writes the names that configs, tables and figures use as keys."""

#: Our key for a model -> the paper's label, in the paper's order (its Table 2).
MODELS = {
    "gpt2_small": "GPT-2-Small (124M)",
    "gpt2_medium": "GPT-2-Medium (350M)",
    "qwen3_0_6b": "Qwen3-0.6B",
    "qwen3_1_7b": "Qwen3-1.7B",
    "qwen3_4b": "Qwen3-4B",
    "qwen3_8b": "Qwen3-8B",
    "deepseek_v2_lite": "DeepSeek-V2-Lite (16B)",
    "qwen3_30b_a3b": "Qwen3-30B-A3B",
    "qwen3_32b": "Qwen3-32B",
    "qwen3_235b_a22b": "Qwen3-235B-A22B",
}

#: Our key for an optimizer -> its label. ``_released`` marks what the authors' public code does
#: where that differs from the paper's equations.
OPTIMIZERS = {
    "adamw": "AdamW",
    "adams": "AdamS",
    "signsgd": "SignSGD",
    "pbsgdm": "pbSGDM",
    "stacey": "Stacey",
    "powerstep": "PowerStep",
    "adamw_int8": "AdamW int8",
    "powerstep_int8": "PowerStep int8",
    "adams_released": "AdamS (released)",
    "pbsgdm_released": "pbSGDM (released)",
    "stacey_released": "Stacey (released)",
    "adamw_int8_released": "AdamW int8 (released)",
    "powerstep_int8_released": "PowerStep int8 (released)",
}


def model_label(key: str) -> str:
    """Return the paper's label of a model; a model that the paper lacks keeps its key."""
    return MODELS.get(key, key)


def optimizer_label(key: str) -> str:
    """Return the label of an optimizer; one that the paper lacks keeps its key."""
    return OPTIMIZERS.get(key, key)
