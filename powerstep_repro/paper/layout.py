"""How the paper lays out its seven figures: panels, their order, the grid, the sub-captions.

The LaTeX source holds captions and sub-captions but no image, so curve shapes, axis ranges and
step counts are unknown (see ``assumed``).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """One sub-figure: a key (a model, or what is varied) and the paper's sub-caption."""

    key: str
    title: str


@dataclass(frozen=True)
class PaperFigure:
    """One figure: our name, the paper's number and label, its panels and panels per row."""

    name: str
    number: int
    label: str
    title: str
    panels: tuple[Panel, ...]
    columns: int


FIGURES = {
    f.name: f
    for f in (
        PaperFigure(
            "spt",
            1,
            "fig:spt",
            "Signed power transform Φᵦ(x)",
            (Panel("spt", "Φᵦ(x) = sign(x)|x|ᵝ"),),
            1,
        ),
        PaperFigure(
            "small",
            2,
            "fig:small_exp",
            "Training loss across model scales",
            (
                Panel("gpt2_small", "GPT-2-Small (124M)"),
                Panel("gpt2_medium", "GPT-2-Medium (350M)"),
                Panel("qwen3_0_6b", "Qwen3-0.6B"),
                Panel("qwen3_1_7b", "Qwen3-1.7B"),
                Panel("qwen3_4b", "Qwen3-4B"),
                Panel("qwen3_8b", "Qwen3-8B"),
            ),
            2,
        ),
        PaperFigure(
            "hyper",
            3,
            "fig:hyper",
            "Hyperparameter sensitivity",
            (
                Panel("beta", "Varying power exponent β"),
                Panel("gamma", "Varying momentum coefficient γ"),
            ),
            2,
        ),
        PaperFigure(
            "quant",
            4,
            "fig:quant",
            "Training loss under int8 quantization of the optimizer state",
            (Panel("gpt2_small", "GPT-2-Small"), Panel("gpt2_medium", "GPT-2-Medium")),
            2,
        ),
        PaperFigure(
            "large",
            5,
            "fig:large_exp",
            "Training loss on large-scale models",
            (
                Panel("deepseek_v2_lite", "DeepSeek-V2-Lite (16B)"),
                Panel("qwen3_30b_a3b", "Qwen3-30B-A3B"),
                Panel("qwen3_32b", "Qwen3-32B"),
                Panel("qwen3_235b_a22b", "Qwen3-235B-A22B"),
            ),
            2,
        ),
        PaperFigure(
            "lr",
            6,
            "fig:lr",
            "Training loss over learning rates",
            (Panel("adamw", "AdamW"), Panel("powerstep", "PowerStep")),
            2,
        ),
        PaperFigure(
            "stacey",
            7,
            "fig:stacey",
            "Training loss of PowerStep and Stacey-(p,2)",
            (
                Panel("gpt2_small", "GPT-2-Small (124M)"),
                Panel("gpt2_medium", "GPT-2-Medium (350M)"),
            ),
            2,
        ),
    )
}
