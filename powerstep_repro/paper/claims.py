"""The paper's claims, each with what would confirm and what would refute it.

Fixed before the runs that they judge. The rule for parity: the 90 % interval of the paired gap in
final validation loss lies inside ±0.028 (the paper's own largest gap) and the claim is reproduced;
wholly outside, it is not; else it is inconclusive. Claims about an order ask on which side of zero
the whole interval lies. One run a side (n = 1) is inconclusive, whatever it shows.

``kind`` names the judge (``powerstep_repro.evidence.verdicts``); the other fields are its inputs.
A claim on several models, rates or codes is judged item by item, and is universal: it says that all
of them hold. One item not reproduced and the claim is not; it is reproduced when every item was run
and is; while items are not run and none is refuted, it is inconclusive so far. Not universal are
``parity_typical`` ("typically", with a rule of its own) and ``memory_8x`` (arithmetic; its measured
items are whatever was run besides).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from powerstep_repro.paper.assumed import (
    ABOUT_EIGHT,
    COLLAPSE_NATS,
    EARLY_FRACTION,
    NOTICEABLE_RATIO,
)

#: The paper's largest gap to AdamW (Table 4's caption); our margin for parity, in nats a token.
MARGIN = 0.028
#: The paper's "typically" (the same caption).
TYPICAL = 0.02
#: Coverage of every interval.
INTERVAL = 0.90


@dataclass(frozen=True)
class Side:
    """One side of a comparison: an optimizer, and config values that its runs must have.

    A value of None asks that the key be null or absent.
    """

    optimizer: str
    where: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        name: our short key.
        says: the claim in our words.
        source: where the paper makes it.
        kind: the judge that settles it.
        sweep: the sweep whose runs settle it; None if no run does.
        confirms: the outcome that confirms it.
        refutes: the outcome that refutes it.
        models: the paper's models that it speaks of; empty means whatever the sweep holds.
        subjects: the sides it is about.
        reference: the side that they are compared with.
        match_on: config keys that subject and reference must share beside the model.
        bound: the judge's margin, threshold or range.
        paper_table: the paper's table that the same rule can be read on, where there is one.
        assumed: what in the test is our reading, not the paper's word.
        universal: whether it says that all its parts hold, so that none may go unrun.
    """

    name: str
    says: str
    source: str
    kind: str
    sweep: str | None
    confirms: str
    refutes: str
    models: tuple[str, ...] = ()
    subjects: tuple[Side, ...] = ()
    reference: Side | None = None
    match_on: tuple[str, ...] = ()
    bound: float | tuple[float, float] = MARGIN
    paper_table: str | None = None
    assumed: str = ""
    universal: bool = True


_SMALL = (
    "gpt2_small",
    "gpt2_medium",
    "qwen3_0_6b",
    "qwen3_1_7b",
    "qwen3_4b",
    "qwen3_8b",
)
_LARGE = ("deepseek_v2_lite", "qwen3_30b_a3b", "qwen3_32b", "qwen3_235b_a22b")
_GPT2 = ("gpt2_small", "gpt2_medium")
_ADAMW, _POWERSTEP = Side("adamw"), Side("powerstep")
_INT8 = tuple(Side("powerstep_int8", {"optimizer.code": code}) for code in ("dynamic", "linear"))
_INSIDE = f"the 90 % interval of its gap lies inside ±{MARGIN:g}"
_OUTSIDE = f"the 90 % interval of its gap lies wholly outside ±{MARGIN:g}"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        name="parity",
        says="PowerStep ends within 0.028 of AdamW at the same learning rate, at every scale.",
        source="Table 4 and its caption; Section 5.2",
        kind="parity",
        sweep="small",
        models=_SMALL,
        subjects=(_POWERSTEP,),
        reference=_ADAMW,
        paper_table="valid_small",
        confirms=_INSIDE,
        refutes=_OUTSIDE,
    ),
    Claim(
        name="parity_typical",
        says="The gap is typically at most 0.02.",
        source="Table 4's caption",
        kind="majority",
        sweep="small",
        models=_SMALL,
        subjects=(_POWERSTEP,),
        reference=_ADAMW,
        bound=TYPICAL,
        paper_table="valid_small",
        confirms="on more than half of the six models the interval lies inside ±0.02",
        refutes="on at least half of the six models it lies wholly outside ±0.02",
        assumed="'typically' read as 'on more than half of the models'",
        universal=False,
    ),
    Claim(
        name="no_trend_with_scale",
        says="The gap to AdamW does not grow with the model.",
        source="Appendix A.1",
        kind="trend",
        sweep="small",
        models=_SMALL,
        subjects=(_POWERSTEP,),
        reference=_ADAMW,
        paper_table="valid_small",
        confirms="over three models or more, the 90 % interval of the slope of the gap over the "
        "logarithm of the parameters holds zero, and the growth it allows over the six sizes "
        "stays under 0.028",
        refutes="the slope's interval lies wholly above zero",
        assumed="'trend' read as a straight line over log10 of the parameters",
    ),
    Claim(
        name="others_slower",
        says="AdamS, SignSGD and pbSGDM converge slower than PowerStep or turn unstable.",
        source="Section 5.2; Figure 2's caption",
        kind="order",
        sweep="small",
        models=_SMALL,
        subjects=(Side("adams"), Side("signsgd"), Side("pbsgdm")),
        reference=_POWERSTEP,
        paper_table="valid_small",
        confirms="the interval of (other − PowerStep) lies wholly above zero, or "
        "the other diverges",
        refutes="the interval lies wholly below zero",
        assumed="'slower' read as a higher validation loss at the end",
    ),
    Claim(
        name="others_collapse_at_8b",
        says="AdamS and SignSGD collapse on Qwen3-8B.",
        source="Table 4 (4.689 and 5.045); Section 5.2",
        kind="collapse",
        sweep="small",
        models=("qwen3_8b",),
        subjects=(Side("adams"), Side("signsgd")),
        reference=_ADAMW,
        bound=COLLAPSE_NATS,
        paper_table="valid_small",
        confirms="every run diverges or ends at least 1 nat above AdamW",
        refutes="no run does",
        assumed="the threshold of 1 nat",
    ),
    Claim(
        name="parity_not_an_lr_artifact",
        says="Parity with AdamW is not an artifact of the shared learning rate.",
        source="Appendices A.1 and B",
        kind="parity_tuned",
        sweep="lr_all",
        models=("gpt2_small",),
        subjects=(_POWERSTEP,),
        reference=_ADAMW,
        confirms="each at the best learning rate of its own grid, and neither at the grid's edge, "
        + _INSIDE,
        refutes="each at the best learning rate of its own grid, and neither at the grid's edge, "
        + _OUTSIDE,
        assumed="the sweep over learning rates for each optimizer, which the paper did not do",
    ),
    Claim(
        name="beta0_collapses",
        says="With β = 0 PowerStep starts fast and then collapses on GPT-2-Medium.",
        source="Section 5.3; Figure 3(a)",
        kind="collapse",
        sweep="beta",
        models=("gpt2_medium",),
        subjects=(Side("powerstep", {"optimizer.beta": 0.0}),),
        reference=Side("powerstep", {"optimizer.beta": 0.1}),
        bound=COLLAPSE_NATS,
        confirms="every run diverges or ends at least 1 nat above β = 0.1",
        refutes="no run does",
        assumed="the threshold of 1 nat",
    ),
    Claim(
        name="signsgd_trains_on_medium",
        says="SignSGD on GPT-2-Medium ends at 2.736, 0.025 above AdamW. It is PowerStep with β = 0 "
        "bit for bit, so this and the claim that β = 0 collapses cannot both hold.",
        source="Table 4, against Figure 3(a)",
        kind="steady",
        sweep="small",
        models=("gpt2_medium",),
        subjects=(Side("signsgd"),),
        reference=_ADAMW,
        bound=COLLAPSE_NATS,
        paper_table="valid_small",
        confirms="no run diverges or ends 1 nat or more above AdamW",
        refutes="every run does",
        assumed="the threshold of 1 nat",
    ),
    Claim(
        name="beta_best",
        says="β = 0.1 is the best of 0, 0.1 and 0.2.",
        source="Section 5.3; Figure 3(a)",
        kind="order",
        sweep="beta",
        models=("gpt2_medium",),
        subjects=tuple(Side("powerstep", {"optimizer.beta": beta}) for beta in (0.0, 0.2)),
        reference=Side("powerstep", {"optimizer.beta": 0.1}),
        confirms="the interval of (other β − 0.1) lies wholly above zero, or the other diverges",
        refutes="the interval lies wholly below zero",
        assumed="'best' read as the lowest validation loss at the end",
    ),
    Claim(
        name="gamma_robust",
        says="PowerStep is robust to γ between 0.85 and 0.95.",
        source="Section 5.3; Figure 3(b)",
        kind="parity",
        sweep="gamma",
        models=("gpt2_medium",),
        subjects=tuple(Side("powerstep", {"optimizer.gamma": gamma}) for gamma in (0.85, 0.95)),
        reference=Side("powerstep", {"optimizer.gamma": 0.9}),
        confirms=_INSIDE + " (to γ = 0.9)",
        refutes=_OUTSIDE + " (to γ = 0.9)",
        assumed="'robust' read as parity with γ = 0.9",
    ),
    Claim(
        name="adamw_int8_collapses",
        says="AdamW collapses at once under blockwise dynamic int8 quantization of its state.",
        source="Section 5.4; Figure 4",
        kind="collapse",
        sweep="quant",
        models=_GPT2,
        subjects=(
            Side(
                "adamw_int8",
                {
                    "optimizer.code": "dynamic",
                    "optimizer.code_m": None,
                    "optimizer.code_v": None,
                },
            ),
        ),
        reference=_ADAMW,
        bound=COLLAPSE_NATS,
        confirms="every run diverges or ends at least 1 nat above AdamW in fp32",
        refutes="no run does",
        assumed="the threshold of 1 nat; 'dynamic' read as the code of the work it cites",
    ),
    Claim(
        name="adamw_int8_released_collapses",
        says="AdamW int8 as released (linear code, signed second moment) collapses.",
        source="Figure 4, with the released code",
        kind="collapse",
        sweep="quant",
        models=_GPT2,
        subjects=(Side("adamw_int8_released"),),
        reference=_ADAMW,
        bound=COLLAPSE_NATS,
        confirms="every run diverges or ends at least 1 nat above AdamW in fp32",
        refutes="no run does",
        assumed="the threshold of 1 nat",
    ),
    Claim(
        name="powerstep_int8_stable",
        says="PowerStep stays stable under int8 quantization of its state.",
        source="Section 5.4; Figure 4",
        kind="steady",
        sweep="quant",
        models=_GPT2,
        subjects=_INT8,
        reference=_POWERSTEP,
        bound=COLLAPSE_NATS,
        confirms="no run diverges or ends 1 nat or more above PowerStep in fp32",
        refutes="every run does",
        assumed="the threshold of 1 nat",
    ),
    Claim(
        name="int8_equals_fp32",
        says="PowerStep int8 ends where PowerStep in fp32 does.",
        source="Table 5; Section 5.4",
        kind="parity",
        sweep="quant",
        models=_GPT2,
        subjects=_INT8,
        reference=_POWERSTEP,
        paper_table="quant_valid",
        confirms=_INSIDE,
        refutes=_OUTSIDE,
    ),
    Claim(
        name="heavy_ball_more_robust",
        says="Under quantization a heavy-ball buffer stalls less than an exponential average.",
        source="Appendix E.3, layer 4",
        kind="codes",
        sweep=None,
        bound=1e-3,
        confirms="over 300 steps the int8 codes of the two buffers, the average stepped at "
        "(1 − γ)^(−β) times the rate, differ in more than 0.1 % of places",
        refutes="they differ in at most 0.1 % of places (rounding ties): absmax codes do not see "
        "scale, and the heavy-ball buffer is the average divided by 1 − γ",
        assumed="the bound of 0.1 %",
    ),
    Claim(
        name="large_parity",
        says="PowerStep int8 matches AdamW in fp32 on the four large models.",
        source="Table 6; Section 5.5; Figure 5",
        kind="parity",
        sweep="large",
        models=_LARGE,
        subjects=(Side("powerstep_int8"),),
        reference=_ADAMW,
        paper_table="valid_large",
        confirms=_INSIDE,
        refutes=_OUTSIDE,
    ),
    Claim(
        name="memory_8x",
        says="PowerStep int8 needs about 8 times less optimizer state than AdamW in fp32.",
        source="Table 1; abstract",
        kind="memory",
        sweep=None,
        models=_LARGE,
        subjects=(Side("powerstep_int8"),),
        reference=_ADAMW,
        bound=ABOUT_EIGHT,
        paper_table="memory",
        confirms="the ratio of state bytes a parameter lies between 7.5 and 8.5",
        refutes="it lies outside",
        assumed="the range; state alone, without the fp32 master copy of the parameters",
        universal=False,
    ),
    Claim(
        name="no_wall_clock_difference",
        says="There is no noticeable difference in wall-clock time between PowerStep and AdamW.",
        source="Section 5.5",
        kind="speed",
        sweep="small",
        subjects=(_POWERSTEP,),
        reference=_ADAMW,
        bound=NOTICEABLE_RATIO,
        confirms="the 90 % interval of the ratio of tokens per second lies inside 1 ± 0.05",
        refutes="the interval lies wholly outside",
        assumed="5 % as what can be noticed; on our hardware, not the paper's",
    ),
    Claim(
        name="faster_at_larger_lr",
        says="AdamW and PowerStep both converge faster at larger learning rates, up to 1e-3.",
        source="Appendix B; Figure 6",
        kind="monotone",
        sweep="lr",
        models=("gpt2_small",),
        subjects=(_ADAMW, _POWERSTEP),
        confirms="the largest rate has the lowest mean loss, and the interval of "
        "(largest − smallest rate) lies wholly below zero",
        refutes="the interval lies wholly above zero, or that of (largest − best rate) does",
        assumed="'faster' read as a lower validation loss at the end",
    ),
    Claim(
        name="lr_sensitivity_alike",
        says="PowerStep's sensitivity to the learning rate closely mirrors AdamW's.",
        source="Appendix B; Figure 6",
        kind="alike",
        sweep="lr",
        models=("gpt2_small",),
        subjects=(_POWERSTEP,),
        reference=_ADAMW,
        match_on=("lr",),
        confirms="the largest deviation of the gap at one rate from its mean over the rates has a "
        "90 % interval under 0.028",
        refutes="that interval lies wholly above 0.028",
        assumed="'mirrors' read as a gap that is the same at all rates",
    ),
    Claim(
        name="faster_than_stacey_early",
        says="PowerStep converges faster than Stacey in the early stages.",
        source="Appendix C; Figure 7",
        kind="early",
        sweep="stacey",
        models=_GPT2,
        subjects=(Side("stacey"),),
        reference=_POWERSTEP,
        match_on=("lr",),
        bound=EARLY_FRACTION,
        confirms="at 20 % of the steps the interval of (Stacey − PowerStep) in smoothed training "
        "loss lies wholly above zero",
        refutes="it lies wholly below zero",
        assumed="'early' read as 20 % of the steps",
    ),
    Claim(
        name="equal_to_stacey_at_the_end",
        says="PowerStep and Stacey end at comparable losses.",
        source="Appendix C; Figure 7",
        kind="parity",
        sweep="stacey",
        models=_GPT2,
        subjects=(Side("stacey"),),
        reference=_POWERSTEP,
        match_on=("lr",),
        confirms=_INSIDE,
        refutes=_OUTSIDE,
        assumed="'comparable' read as parity",
    ),
)
