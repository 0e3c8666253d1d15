"""Judges of the claims on final losses: parity, order, collapse, trend.

A judge returns items (one a model, a rate, a code), each with its verdict and its evidence in
words; ``judged`` joins them to the verdict on the claim.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from powerstep_repro.evidence import Cell, Evidence, Source, rate_label, size_label
from powerstep_repro.evidence.compare import (
    collapsed,
    gap_of,
    gap_words,
    judge_collapse,
    judge_order,
    judge_parity,
)
from powerstep_repro.evidence.labels import variant_label
from powerstep_repro.evidence.memory import paper_counts
from powerstep_repro.evidence.statistics import (
    ELSEWHERE,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    overall,
    slope,
)
from powerstep_repro.evidence.words import signed
from powerstep_repro.paper import Claim, model_label, optimizer_label, value
from powerstep_repro.paper.claims import Side


@dataclass(frozen=True)
class Item:
    """One part of a claim: what was compared, the verdict, the evidence, the number of seeds."""

    what: str
    verdict: str
    evidence: str
    n: int = 0


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict, its items, and what the paper's own table says about it."""

    claim: Claim
    verdict: str
    items: list[Item]
    on_paper: str = ""

    @property
    def _ran(self) -> list[str]:
        """The verdicts of the items that were run on what the claim speaks of."""
        return [i.verdict for i in self.items if i.verdict not in (NOT_RUN, ELSEWHERE)]

    @property
    def coverage(self) -> str:
        """How many of the claim's items were run."""
        return f"{len(self._ran)} of {len(self.items)}" if len(self.items) > 1 else ""

    @property
    def holds_so_far(self) -> bool:
        """Whether it is open for want of runs alone: all items that were run are reproduced."""
        ran = self._ran
        return self.verdict == INCONCLUSIVE and bool(ran) and set(ran) == {REPRODUCED}

    @property
    def words(self) -> str:
        """The verdict, and how far a claim that is open for want of runs holds."""
        if not self.holds_so_far:
            return self.verdict
        ran = len(self._ran)
        return f"{self.verdict} so far: {ran} of {ran} parts run hold{'s' if ran == 1 else ''}"


Judge = Callable[[Claim, Evidence], list[Item]]
JUDGES: dict[str, Judge] = {}


def judge(kind: str) -> Callable[[Judge], Judge]:
    """Enter a function as the judge of a kind of claim."""

    def enter(function: Judge) -> Judge:
        JUDGES[kind] = function
        return function

    return enter


def side_label(side: Side, cell: Cell | None = None) -> str:
    """Name a side for people: the optimizer and the values that set it apart."""
    values = [f"{k.split('.')[-1]} = {v}" for k, v in side.where.items() if v is not None]
    if cell is not None and not values:
        return variant_label(cell)
    return ", ".join([optimizer_label(side.optimizer), *values])


def pairs(
    claim: Claim, source: Source, models: tuple[str, ...] = ()
) -> Iterator[tuple[str, Cell, Cell | None]]:
    """Yield what is compared, the subject's cell and the reference's, for every item of a claim."""
    for model in models or claim.models or dict.fromkeys(cell.model for cell in source.cells):
        for side in claim.subjects:
            for subject in source.find(model, side):
                shared = {key: subject.value(key) for key in claim.match_on}
                found = source.find(model, claim.reference, **shared) if claim.reference else []
                reference = found[0] if found else None
                words = f"{model_label(model)}: {side_label(side)}"
                words += "".join(f", {_value(key, v)}" for key, v in shared.items())
                yield words, subject, reference


def _value(key: str, number: float) -> str:
    return f"{key} {rate_label(number) if key == 'lr' else number}"


def stood_in(claim: Claim, evidence: Evidence) -> tuple[Source, tuple[str, ...], str]:
    """Return a claim's source; at ``h100`` a sweep on Medium may be answered by Small.

    Returns:
        The source, the models to look for, and a remark if they are not the paper's.
    """
    if claim.models != ("gpt2_medium",) or claim.sweep not in ("beta", "gamma"):
        return evidence.source(claim.sweep), claim.models, ""
    (source,) = evidence.sources_or((claim.sweep,), "model=gpt2_small")
    models = tuple(dict.fromkeys(cell.model for cell in source.cells))
    remark = "" if models == claim.models else "it is not the paper's model"
    return source, models, remark


def _items(claim: Claim, evidence: Evidence, decide: Callable, words: Callable) -> list[Item]:
    source, models, remark = stood_in(claim, evidence)
    items = []
    for what, subject, reference in pairs(claim, source, models):
        ran = subject.outcome.n and (reference is not None and reference.outcome.n)
        verdict = decide(subject, reference) if ran else NOT_RUN
        text = words(subject, reference) if ran else _why_not(subject, reference)
        if remark and ran:
            verdict, text = ELSEWHERE, f"{text}; {verdict} there, but {remark}"
        elif ran:
            verdict, text = at_full_size(subject, verdict, text)
        gap = gap_of(subject, reference) if ran else None
        items.append(Item(what, verdict, text, gap.n if gap else subject.outcome.n))
    return items


def at_full_size(subject: Cell, verdict: str, text: str) -> tuple[str, str]:
    """Settle nothing where the profile scales the model: the claim is on another one."""
    if subject.scaled_to is None:
        return verdict, text
    size = size_label(subject.scaled_to)
    return ELSEWHERE, f"{text}; {verdict} there, but the model is scaled to {size} parameters"


def _why_not(subject: Cell, reference: Cell | None) -> str:
    """The state of the subject's runs or, where those are of use, of what they are held against."""
    if (own := subject.outcome.status) not in ("finished", "diverged") or reference is None:
        return own
    return f"{variant_label(reference)}, its reference: {reference.outcome.status}"


def _gap_text(subject: Cell, reference: Cell) -> str:
    """Say the gap with its interval and n, or how the runs ended if there is none."""
    gap, ours, theirs = gap_of(subject, reference), subject.outcome, reference.outcome
    if gap is None or ours.diverged:
        return f"{ours.words()} against {theirs.words()}, n = {ours.n}"
    means = [np.mean([side.finals[seed].loss for seed in gap.seeds]) for side in (ours, theirs)]
    return f"gap {gap_words(gap)}, n = {gap.n} ({means[0]:.3f} against {means[1]:.3f})"


@judge("parity")
def _parity(claim: Claim, evidence: Evidence) -> list[Item]:
    return _items(claim, evidence, lambda s, r: judge_parity(s, r, claim.bound), _gap_text)


# Item by item the same rule; what the items come to is ``majority``.
JUDGES["majority"] = _parity


def majority(items: list[Item]) -> str:
    """Judge "typically": true of more than half of all items, or false of at least half."""
    verdicts = [item.verdict for item in items]
    if overall(verdicts) == NOT_RUN:
        return NOT_RUN
    if 2 * verdicts.count(REPRODUCED) > len(items):
        return REPRODUCED
    return NOT_REPRODUCED if 2 * verdicts.count(NOT_REPRODUCED) >= len(items) else INCONCLUSIVE


@judge("order")
def _order(claim: Claim, evidence: Evidence) -> list[Item]:
    return _items(claim, evidence, judge_order, _gap_text)


def _collapse_text(subject: Cell, reference: Cell) -> str:
    runs = collapsed(subject, reference)
    return f"{sum(runs)} of {len(runs)} runs collapsed; {_gap_text(subject, reference)}"


@judge("collapse")
def _collapse(claim: Claim, evidence: Evidence) -> list[Item]:
    return _items(claim, evidence, judge_collapse, _collapse_text)


@judge("steady")
def _steady(claim: Claim, evidence: Evidence) -> list[Item]:
    opposite = {REPRODUCED: NOT_REPRODUCED, NOT_REPRODUCED: REPRODUCED}

    def decide(subject: Cell, reference: Cell) -> str:
        verdict = judge_collapse(subject, reference)
        return opposite.get(verdict, verdict)

    return _items(claim, evidence, decide, _collapse_text)


def sizes(models: tuple[str, ...]) -> dict[str, float]:
    """Return log10 of the parameters of the paper's models."""
    return {model: float(np.log10(paper_counts(model).n_params)) for model in models}


def trend_verdict(fit, span: float, margin: float) -> str:
    """Judge "no trend" by the slope's interval and the growth it allows over ``span``."""
    if not fit.has_interval:
        return INCONCLUSIVE
    if fit.low > 0:
        return NOT_REPRODUCED
    return REPRODUCED if fit.high >= 0 and fit.high * span < margin else INCONCLUSIVE


@judge("trend")
def _trend(claim: Claim, evidence: Evidence) -> list[Item]:
    source = evidence.source(claim.sweep)
    gaps = {}
    for _, subject, reference in pairs(claim, source):
        gap = gap_of(subject, reference)
        if gap is not None and subject.scaled_to is None:
            gaps[subject.model] = gap
    what = "slope of the gap over log10 of the parameters"
    if len(gaps) < 3:
        text = f"{len(gaps)} of {len(claim.models)} models at full size, 3 are needed"
        return [Item(what, INCONCLUSIVE if gaps else NOT_RUN, text)]
    log10 = sizes(claim.models)
    x, y = [log10[m] for m in gaps], [gap.mean for gap in gaps.values()]
    fit = slope(np.array(x), np.array(y))
    n = min(gap.n for gap in gaps.values())
    span = max(log10.values()) - min(log10.values())
    verdict = trend_verdict(fit, span, claim.bound) if n > 1 else INCONCLUSIVE
    text = f"{signed(fit.mean, 4)} [{signed(fit.low, 4)}, {signed(fit.high, 4)}] nats a decade"
    return [Item(what, verdict, f"{text} over {len(gaps)} models, n = {n}", n)]


def paper_gap(claim: Claim, model: str, side: Side) -> float | None:
    """Return the paper's own gap between a claim's side and its reference, where it prints both."""
    if claim.paper_table is None or claim.reference is None:
        return None
    ours = value(claim.paper_table, model, side.optimizer)
    theirs = value(claim.paper_table, model, claim.reference.optimizer)
    return None if ours is None or theirs is None else ours - theirs
