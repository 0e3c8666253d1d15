"""What the paper's own tables say about its claims, read by the claims' own rules."""

from collections.abc import Callable

import numpy as np

from powerstep_repro.evidence.statistics import slope
from powerstep_repro.evidence.verdicts import paper_gap, sizes, trend_verdict
from powerstep_repro.evidence.words import signed
from powerstep_repro.paper import Claim, optimizer_label, value


def on_paper(claim: Claim) -> str:
    """Return a sentence on the paper's printed numbers; empty where they do not speak."""
    reader = _READERS.get(claim.kind)
    if claim.paper_table is None or reader is None:
        return ""
    gaps = {}
    for model in claim.models:
        for side in claim.subjects:
            gap = paper_gap(claim, model, side)
            if gap is not None:
                gaps[model, side.optimizer] = round(gap, 6)
    return reader(claim, gaps) if gaps else ""


def _gaps(claim: Claim, gaps: dict) -> str:
    inside = sum(abs(gap) <= claim.bound + 1e-9 for gap in gaps.values())
    listed = ", ".join(signed(gap) for gap in gaps.values())
    return f"printed gaps {listed}: {inside} of {len(gaps)} within ±{claim.bound:g}, one seed each"


def _order(claim: Claim, gaps: dict) -> str:
    above = sum(gap > 0 for gap in gaps.values())
    other = optimizer_label(claim.reference.optimizer)
    return f"in the printed table {above} of {len(gaps)} end above {other}"


def _trend(claim: Claim, gaps: dict) -> str:
    log10 = sizes(claim.models)
    models = [model for model, _ in gaps]
    fit = slope(np.array([log10[m] for m in models]), np.array(list(gaps.values())))
    span = max(log10.values()) - min(log10.values())
    verdict = trend_verdict(fit, span, claim.bound)
    numbers = f"{signed(fit.mean, 4)} [{signed(fit.low, 4)}, {signed(fit.high, 4)}]"
    return f"the printed gaps have a slope of {numbers} nats a decade: {verdict} by this rule"


def _collapse(claim: Claim, gaps: dict) -> str:
    listed = ", ".join(f"{optimizer_label(name)} {signed(gap)}" for (_, name), gap in gaps.items())
    return f"printed gaps to {optimizer_label(claim.reference.optimizer)}: {listed}"


def _ratio(claim: Claim, gaps: dict) -> str:
    ratios = [
        value(claim.paper_table, m, claim.reference.optimizer) / value(claim.paper_table, m, name)
        for m, name in gaps
    ]
    return "printed ratios " + ", ".join(f"{ratio:.2f}" for ratio in ratios)


_READERS: dict[str, Callable[[Claim, dict], str]] = {
    "parity": _gaps,
    "majority": _gaps,
    "order": _order,
    "trend": _trend,
    "collapse": _collapse,
    "steady": _collapse,
    "memory": _ratio,
}
