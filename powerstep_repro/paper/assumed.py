"""What the paper's LaTeX source leaves open, and what we took instead. All of it is *assumed*."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Assumption:
    """One open point: where it matters, what we took, and why."""

    where: str
    what: str
    taken: str
    why: str


#: Values of β drawn in Figure 1: the limits, the default, the ablation's other value, square root.
SPT_BETAS = (0.0, 0.1, 0.2, 0.5, 1.0)

#: Our threshold for "collapses": nats above the reference at the end of the run.
COLLAPSE_NATS = 1.0

#: Our reading of "early stages of training": the first fifth of the run.
EARLY_FRACTION = 0.2

#: Our reading of "no noticeable wall-clock difference": within five per cent.
NOTICEABLE_RATIO = 0.05

#: Our reading of "approximately 8x": what rounds to eight.
ABOUT_EIGHT = (7.5, 8.5)

ASSUMED = (
    Assumption(
        "Figure 1",
        "values of β that are drawn",
        ", ".join(f"{b:g}" for b in SPT_BETAS),
        "the figure's image is not in the source; the text names 0, 0.1, 0.2 and 1",
    ),
    Assumption(
        "Figures 2 to 7",
        "number of training steps",
        "50,000 for GPT-2, 20,000 for the rest (inferred from the released scripts)",
        "the paper states none",
    ),
    Assumption(
        "Figures 2 to 7",
        "curve shapes, axis ranges, smoothing",
        "training loss against tokens, smoothed over a fixed number of tokens",
        "the figures' images are not in the source",
    ),
    Assumption(
        "Figure 4",
        "which curves a panel holds",
        "AdamW and PowerStep in fp32 and in int8, both codes",
        "the caption names the int8 curves and a full-precision comparison; the text says "
        "'dynamic', the released code is linear",
    ),
    Assumption(
        "Figure 7",
        "which curves a panel holds",
        "both optimizers at both learning rates, 6e-4 and 1e-3",
        "the text names the rates, not the curves",
    ),
    Assumption(
        "Tables 4 to 6",
        "when and on what the validation loss is taken",
        "at the last step, on fixed windows, the same for all runs",
        "the paper states neither",
    ),
    Assumption(
        "Tables 4 to 6",
        "number of seeds",
        "one",
        "no spread is printed",
    ),
    Assumption(
        "claims on collapse",
        "how far up a collapsed run ends",
        f"non-finite, or at least {COLLAPSE_NATS:g} nat above the reference at the end",
        "the text names no threshold; its own collapsed cells end 2.0 and 2.4 nats above AdamW, "
        "and the largest gap that it calls slow is 0.43",
    ),
    Assumption(
        "claim on Stacey",
        "how long 'early' lasts",
        f"until {EARLY_FRACTION:.0%} of the steps",
        "the text names no point",
    ),
    Assumption(
        "claim on wall-clock time",
        "what difference is noticeable",
        f"more than {NOTICEABLE_RATIO:.0%} of tokens per second",
        "the text names no bound",
    ),
    Assumption(
        "claim on memory",
        "what counts as about 8x",
        f"between {ABOUT_EIGHT[0]:g} and {ABOUT_EIGHT[1]:g}",
        "the text names no bound",
    ),
)
