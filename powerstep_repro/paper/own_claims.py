"""Claims of our own, beside the paper's, each with what would confirm and what would refute it.

They are on GPT-2 of 30M parameters, one run a setting, and are *exploration* but for one: where the
gap to AdamW sits, at 124M with three seeds a side, is a *test*. Written before the runs that judge
them. A test needs two seeds a side or more. In exploration one run a side counts with ±0.03 in the
place of its 90 % interval: three times what chance moves a difference of four runs by, if each has
the spread over seeds that 124M has (0.0053).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from powerstep_repro.paper.assumed import COLLAPSE_NATS
from powerstep_repro.paper.claims import Claim, Side

EXPLORATION, TEST = "exploration", "test"
#: What stands for the reach of an interval where one run a side was made, in nats a token.
ONE_RUN = 0.03
#: What a warm-up must cost to count, in nats a token.
COST = 0.05
#: Steps of the short and of the long warm-up, of 750.
SHORT, LONG = {"warmup_steps": 38}, {"warmup_steps": 150}


@dataclass(frozen=True)
class OwnClaim(Claim):
    """A claim of our own.

    Attributes:
        stage: exploration or test.
        versus: config values of the runs that each side's own are held against.
        third: a third side, where two do not make the question.
    """

    stage: str = EXPLORATION
    versus: Mapping[str, object] = field(default_factory=dict)
    third: Side | None = None


def _adamw_on(*kinds: str, **values: object) -> Side:
    """PowerStep with AdamW on these kinds of parameters, and on no others."""
    every = ("embeddings", "token_embeddings", "positions", "head", "gains", "matrices")
    rules = {f"groups.{kind}.name": "adamw" if kind in kinds else None for kind in every}
    return Side("powerstep", rules | values)


_ADAMW, _POWERSTEP = Side("adamw"), Side("powerstep")
_LINEAR = {"optimizer.code": "linear"}
_BETAS = ([0.9, 0.95], [0.9, 0.999])
_COLLAPSE = (
    "diverges, or its smoothed training loss rises at least 1 nat above the lowest it has reached"
)
_HALF = (
    "(gap with AdamW there − half of the gap without), each at its own best rate and none at the "
    "edge of its rates,"
)


def _released(warmup: Mapping[str, object], beta: int) -> Side:
    return Side("adamw_int8_released", {**warmup, "optimizer.betas": _BETAS[beta]})


def _on_30m(name: str, kind: str, sweep: str, says: str, **rest: object) -> OwnClaim:
    return OwnClaim(name, says, "ours", kind, sweep, models=("gpt2_30m",), **rest)


OWN_CLAIMS: tuple[OwnClaim, ...] = (
    OwnClaim(
        name="gap_sits_in_the_embeddings",
        says="Most of PowerStep's gap to tuned AdamW sits in how the embeddings are stepped: with "
        "AdamW on them the gap at each one's own rate falls to less than half, at 124M.",
        source="ours",
        kind="half",
        sweep="where_small",
        models=("gpt2_small",),
        subjects=(_adamw_on("embeddings"),),
        reference=_ADAMW,
        third=_POWERSTEP,
        stage=TEST,
        confirms=f"over two seeds or more the 90 % interval of {_HALF} lies wholly below zero",
        refutes="it lies wholly above zero",
    ),
    _on_30m(
        "gap_sits_in_the_embeddings_at_30m",
        "half",
        "where",
        "At 30M, with AdamW on embeddings and gains, PowerStep's gap to tuned AdamW falls to less "
        "than half, each at its own rate.",
        subjects=(_adamw_on("embeddings", "gains"),),
        reference=_ADAMW,
        third=_POWERSTEP,
        confirms=f"the interval of {_HALF} lies wholly below zero",
        refutes="it lies wholly above zero",
    ),
    _on_30m(
        "short_warmup_costs_signs_more",
        "cost",
        "warmup",
        "PowerStep and SignSGD lose more by a short warm-up than AdamW does.",
        subjects=(Side("powerstep", SHORT), Side("signsgd", SHORT)),
        reference=Side("adamw", SHORT),
        versus=LONG,
        bound=COST,
        confirms="the loss with 38 steps of warm-up − that with 150 exceeds the same of AdamW by "
        "more than 0.05, the whole interval above it",
        refutes="the whole interval lies below 0.05",
    ),
    _on_30m(
        "short_warmup_costs_adamw_nothing",
        "cheap",
        "warmup",
        "A short warm-up costs AdamW nothing.",
        subjects=(Side("adamw", SHORT),),
        versus=LONG,
        bound=COST,
        confirms="the interval of (38 steps of warm-up − 150) lies wholly below 0.05",
        refutes="it lies wholly above 0.05",
    ),
    _on_30m(
        "no_warmup_costs_all",
        "cost",
        "warmup",
        "No optimizer here does without a warm-up.",
        subjects=(
            *(Side(name, {"warmup_steps": 0}) for name in ("adamw", "powerstep", "signsgd")),
            _adamw_on("embeddings", "gains", warmup_steps=0),
        ),
        versus=LONG,
        bound=COST,
        confirms="for each the interval of (no warm-up − 150 steps) lies wholly above 0.05, or "
        "the run without diverges",
        refutes="for one it lies wholly below 0.05",
    ),
    _on_30m(
        "short_warmup_costs_through_the_embeddings",
        "cheap",
        "warmup",
        "With AdamW on embeddings and gains a short warm-up costs PowerStep no more than it costs "
        "AdamW.",
        subjects=(_adamw_on("embeddings", "gains", **SHORT),),
        reference=Side("adamw", SHORT),
        versus=LONG,
        bound=COST,
        confirms="the loss with 38 steps of warm-up − that with 150 exceeds the same of AdamW by "
        "less than 0.05, the whole interval below it",
        refutes="the whole interval lies above 0.05",
    ),
    _on_30m(
        "released_int8_collapses_at_a_short_warmup",
        "blows_up",
        "warmup",
        "AdamW int8 as released collapses at a short warm-up, and at none.",
        subjects=tuple(Side("adamw_int8_released", {"warmup_steps": n}) for n in (0, 38)),
        bound=COLLAPSE_NATS,
        confirms=f"each {_COLLAPSE}",
        refutes="one does not",
    ),
    _on_30m(
        "released_int8_trains_at_a_long_warmup",
        "stays",
        "warmup",
        "AdamW int8 as released trains at a long warm-up.",
        subjects=(Side("adamw_int8_released", LONG),),
        bound=COLLAPSE_NATS,
        confirms="its smoothed training loss never rises 1 nat above the lowest it has reached",
        refutes=f"it {_COLLAPSE}",
    ),
    _on_30m(
        "collapse_is_not_beta2",
        "blows_up",
        "collapse",
        "β2 = 0.95 is not what makes AdamW int8 as released collapse: at a short warm-up it does "
        "so with 0.999, too.",
        subjects=(_released(SHORT, 0), _released(SHORT, 1)),
        bound=COLLAPSE_NATS,
        confirms=f"with either β2 it {_COLLAPSE}",
        refutes="with one it does not",
    ),
    _on_30m(
        "collapse_needs_the_released_code",
        "stays",
        "collapse",
        "Eight linear bits alone do not make AdamW collapse: it takes the released code's sign bit "
        "for v, or its 1e-12. Without both it trains at either warm-up.",
        subjects=tuple(Side("adamw_int8", {**_LINEAR, **warmup}) for warmup in (SHORT, LONG)),
        bound=COLLAPSE_NATS,
        confirms="at neither warm-up the smoothed training loss rises 1 nat above the lowest it "
        "has reached",
        refutes=f"at one it {_COLLAPSE}",
    ),
    _on_30m(
        "a_rerun_spreads_like_a_seed",
        "spread",
        "repeats",
        "An exact rerun spreads no less than another seed.",
        subjects=(_POWERSTEP,),
        bound=0.5,
        confirms="over three runs or more of each, the standard deviation of the reruns' final "
        "losses is at least half of that over seeds, and the 90 % interval (F) of their ratio "
        "reaches one",
        refutes="the interval of the ratio lies wholly below one",
    ),
)
