"""GPT-2, from the trainer's own package."""

from collections.abc import Mapping
from typing import Any

from nanogpt.model import GPT, GPTConfig


def build(model: Mapping[str, Any]) -> GPT:
    """Build GPT-2 from a config's ``model`` section."""
    return GPT(
        GPTConfig(
            vocab_size=model["vocab_size"],
            context=model["context"],
            n_layer=model["layers"],
            n_head=model["heads"],
            n_embd=model["hidden"],
            dropout=model["dropout"],
            tied_head=model.get("tied_head", True),
        )
    )
