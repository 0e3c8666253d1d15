"""The paper's claims judged on a profile's runs, and on what the paper's own tables print."""

import numpy as np

from powerstep_repro.evidence import verdicts_other, verdicts_own  # noqa: F401, judges enter here
from powerstep_repro.evidence.sources import Evidence
from powerstep_repro.evidence.statistics import overall, slope
from powerstep_repro.evidence.verdicts import JUDGES, Judgement, majority, sizes, trend_verdict
from powerstep_repro.evidence.words import NO_VERDICT, signed
from powerstep_repro.paper import CLAIMS, OWN_CLAIMS, Claim, optimizer_label, value


def judge_all(evidence: Evidence) -> list[Judgement]:
    """Judge every claim of the paper."""
    return [judge_claim(claim, evidence) for claim in CLAIMS]


def judge_own(evidence: Evidence) -> list[Judgement]:
    """Judge every claim of our own."""
    return [judge_claim(claim, evidence) for claim in OWN_CLAIMS]


def judge_claim(claim: Claim, evidence: Evidence) -> Judgement:
    """Judge one claim by the judge that its ``kind`` names; at ``tiny`` nothing is judged."""
    if evidence.profile == "tiny":
        return Judgement(claim, NO_VERDICT, [], on_paper(claim))
    items = JUDGES[claim.kind](claim, evidence)
    verdicts = [item.verdict for item in items]
    verdict = majority(verdicts) if claim.kind == "majority" else overall(verdicts, claim.universal)
    return Judgement(claim, verdict, items, on_paper(claim))


def on_paper(claim: Claim) -> str:
    """Say what the paper's printed numbers come to by the claim's rule; empty where they do not."""
    if claim.paper_table is None or claim.reference is None:
        return ""
    printed = {}  # (model, optimizer) -> the two numbers
    for model in claim.models:
        for side in claim.subjects:
            pair = [value(claim.paper_table, model, s.optimizer) for s in (side, claim.reference)]
            if None not in pair:
                printed[model, side.optimizer] = pair
    gaps = {key: round(ours - theirs, 6) for key, (ours, theirs) in printed.items()}
    other = optimizer_label(claim.reference.optimizer)
    if claim.kind in ("parity", "majority"):
        inside = sum(abs(gap) <= claim.bound + 1e-9 for gap in gaps.values())
        listed = ", ".join(map(signed, gaps.values()))
        within = f"{inside} of {len(gaps)} within ±{claim.bound:g}, one seed each"
        return f"printed gaps {listed}: {within}"
    if claim.kind == "order":
        above = sum(gap > 0 for gap in gaps.values())
        return f"in the printed table {above} of {len(gaps)} end above {other}"
    if claim.kind == "trend":
        log10 = sizes(claim.models)
        x = [log10[model] for model, _ in gaps]
        fit = slope(np.array(x), np.array(list(gaps.values())))
        verdict = trend_verdict(fit, max(x) - min(x), claim.bound)
        numbers = f"{signed(fit.mean, 4)} [{signed(fit.low, 4)}, {signed(fit.high, 4)}]"
        return f"the printed gaps have a slope of {numbers} nats a decade: {verdict} by this rule"
    if claim.kind == "memory":
        ratios = [theirs / ours for ours, theirs in printed.values()]
        return "printed ratios " + ", ".join(f"{ratio:.2f}" for ratio in ratios)
    listed = ", ".join(f"{optimizer_label(name)} {signed(gap)}" for (_, name), gap in gaps.items())
    return f"printed gaps to {other}: {listed}"
