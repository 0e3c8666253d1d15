"""Judges of the claims on final losses: parity, order, collapse, trend.

A judge returns items (one a model, a rate, a code), each with its verdict and its evidence in
words; ``judged`` joins them to the verdict on the claim.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from powerstep_repro.evidence.compare import (
    collapsed,
    gap_of,
    gap_words,
    judge_collapse,
    judge_order,
    judge_parity,
)
from powerstep_repro.evidence.memory import full_size, scaled_to
from powerstep_repro.evidence.sources import Evidence, Source
from powerstep_repro.evidence.statistics import (
    ELSEWHERE,
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    Gap,
    overall,
    slope,
)
from powerstep_repro.evidence.words import rate_label, signed, size_label, variant_label
from powerstep_repro.paper import Claim, model_label, optimizer_label
from powerstep_repro.paper.claims import Side
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import DIVERGED, FINISHED, NOT_RUN


@dataclass(frozen=True)
class Item:
    """One part of a claim: what was compared, the verdict, the evidence in words."""

    what: str
    verdict: str
    evidence: str


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
        return self.verdict == INCONCLUSIVE and {*self._ran} == {REPRODUCED}

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


def side_label(side: Side, cell: Cell) -> str:
    """Name a side for people: the optimizer and the values that set it apart."""
    values = [f"{k.split('.')[-1]} = {v}" for k, v in side.where.items() if v is not None]
    return ", ".join([optimizer_label(side.optimizer), *values]) if values else variant_label(cell)


def pairs(
    claim: Claim, source: Source, models: tuple[str, ...] = ()
) -> Iterator[tuple[str, Cell, Cell | None]]:
    """Yield what is compared, the subject's cell and the reference's, for every item of a claim."""
    for model in models or claim.models or dict.fromkeys(cell.model for cell in source.cells):
        for side in claim.subjects:
            for subject in source.find(model, side):
                shared = {key: subject.value(key) for key in claim.match_on}
                found = source.find(model, claim.reference, **shared) if claim.reference else []
                words = [f"{model_label(model)}: {side_label(side, subject)}"]
                words += [f"{k} {rate_label(v) if k == 'lr' else v}" for k, v in shared.items()]
                yield ", ".join(words), subject, found[0] if found else None


def _items(claim: Claim, evidence: Evidence, decide: Callable, words: Callable) -> list[Item]:
    """Judge each pair of a claim by ``decide``, its evidence in the ``words`` of the pair."""
    source = evidence.shown(claim.sweep)
    stands_in = source is not evidence.source(claim.sweep)
    models = tuple(dict.fromkeys(cell.model for cell in source.cells)) if stands_in else ()
    items = []
    for what, subject, reference in pairs(claim, source, models):
        if not subject.outcome.n or reference is None or not reference.outcome.n:
            items.append(Item(what, NOT_RUN, _why_not(subject, reference)))
            continue
        verdict, text = decide(subject, reference), words(subject, reference)
        if stands_in:
            verdict, text = ELSEWHERE, f"{text}; {verdict} there, but it is not the paper's model"
        items.append(Item(what, *at_full_size(subject, verdict, text)))
    return items


def at_full_size(subject: Cell, verdict: str, text: str) -> tuple[str, str]:
    """Settle nothing where the profile scales the model: the claim is on another one."""
    size = scaled_to(subject.config)
    if size is None or verdict == ELSEWHERE:
        return verdict, text
    size = size_label(size)
    return ELSEWHERE, f"{text}; {verdict} there, but the model is scaled to {size} parameters"


def _why_not(subject: Cell, reference: Cell | None) -> str:
    """The state of the subject's runs or, where those are of use, of what they are held against."""
    if (own := subject.outcome.status) not in (FINISHED, DIVERGED) or reference is None:
        return own
    return f"{variant_label(reference)}, its reference: {reference.outcome.status}"


def _gap_text(subject: Cell, reference: Cell) -> str:
    """Say the gap with its interval and n, or how the runs ended if there is none."""
    gap, ours, theirs = gap_of(subject, reference), subject.outcome, reference.outcome
    if gap is None or ours.diverged:
        return f"{ours.words()} against {theirs.words()}, n = {ours.n}"
    return f"gap {gap_words(gap)}, n = {gap.n} ({gap.means[0]:.3f} against {gap.means[1]:.3f})"


@judge("majority")  # item by item the same rule; what the items come to is ``majority``
@judge("parity")
def _parity(claim: Claim, evidence: Evidence) -> list[Item]:
    return _items(claim, evidence, lambda s, r: judge_parity(s, r, claim.bound), _gap_text)


def majority(verdicts: list[str]) -> str:
    """Judge "typically": true of more than half of all items, or false of at least half."""
    if overall(verdicts) == NOT_RUN:
        return NOT_RUN
    if 2 * verdicts.count(REPRODUCED) > len(verdicts):
        return REPRODUCED
    return NOT_REPRODUCED if 2 * verdicts.count(NOT_REPRODUCED) >= len(verdicts) else INCONCLUSIVE


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
    return {model: float(np.log10(full_size(model))) for model in models}


def trend_verdict(fit: Gap, span: float, margin: float) -> str:
    """Judge "no trend" by the slope's interval and the growth it allows over ``span``."""
    if fit.low > 0:
        return NOT_REPRODUCED
    return REPRODUCED if fit.high >= 0 and fit.high * span < margin else INCONCLUSIVE


@judge("trend")
def _trend(claim: Claim, evidence: Evidence) -> list[Item]:
    gaps = {}
    for _, subject, reference in pairs(claim, evidence.source(claim.sweep)):
        gap = gap_of(subject, reference)
        if gap is not None and scaled_to(subject.config) is None:
            gaps[subject.model] = gap
    what = "slope of the gap over log10 of the parameters"
    if len(gaps) < 3:
        text = f"{len(gaps)} of {len(claim.models)} models at full size, 3 are needed"
        return [Item(what, INCONCLUSIVE if gaps else NOT_RUN, text)]
    log10 = sizes(claim.models)
    x, y = [log10[model] for model in gaps], [gap.mean for gap in gaps.values()]
    fit = slope(np.array(x), np.array(y))
    n = min(gap.n for gap in gaps.values())
    span = max(log10.values()) - min(log10.values())
    verdict = trend_verdict(fit, span, claim.bound) if n > 1 else INCONCLUSIVE
    text = f"{signed(fit.mean, 4)} [{signed(fit.low, 4)}, {signed(fit.high, 4)}] nats a decade"
    return [Item(what, verdict, f"{text} over {len(gaps)} models, n = {n}")]
