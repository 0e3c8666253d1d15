"""How the paper lays out its seven figures: panels in their order, with their sub-captions.

The LaTeX source holds captions and sub-captions but no image, so curve shapes, axis ranges and
step counts are unknown (see ``assumed``).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PaperFigure:
    """One figure: the paper's number and title, and its panels' sub-captions.

    The key of a panel is the model that it shows, or what is varied.
    """

    number: int
    title: str
    panels: Mapping[str, str]


_GPT2 = {"gpt2_small": "GPT-2-Small (124M)", "gpt2_medium": "GPT-2-Medium (350M)"}
_QWEN3 = {
    "qwen3_0_6b": "Qwen3-0.6B",
    "qwen3_1_7b": "Qwen3-1.7B",
    "qwen3_4b": "Qwen3-4B",
    "qwen3_8b": "Qwen3-8B",
}
_LARGE = {
    "deepseek_v2_lite": "DeepSeek-V2-Lite (16B)",
    "qwen3_30b_a3b": "Qwen3-30B-A3B",
    "qwen3_32b": "Qwen3-32B",
    "qwen3_235b_a22b": "Qwen3-235B-A22B",
}
_HYPER = {"beta": "Varying power exponent β", "gamma": "Varying momentum coefficient γ"}

#: By our name for the figure.
FIGURES = {
    "spt": PaperFigure(1, "Signed power transform Φᵦ(x)", {"spt": "Φᵦ(x) = sign(x)|x|ᵝ"}),
    "small": PaperFigure(2, "Training loss across model scales", _GPT2 | _QWEN3),
    "hyper": PaperFigure(3, "Hyperparameter sensitivity", _HYPER),
    "quant": PaperFigure(
        4,
        "Training loss under int8 quantization of the optimizer state",
        {"gpt2_small": "GPT-2-Small", "gpt2_medium": "GPT-2-Medium"},
    ),
    "large": PaperFigure(5, "Training loss on large-scale models", _LARGE),
    "lr": PaperFigure(
        6, "Training loss over learning rates", {"adamw": "AdamW", "powerstep": "PowerStep"}
    ),
    "stacey": PaperFigure(7, "Training loss of PowerStep and Stacey-(p,2)", _GPT2),
}
