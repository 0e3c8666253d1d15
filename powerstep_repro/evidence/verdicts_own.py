"""Judges of our own claims: on warm-up, collapse, where a gap sits, and reruns.

They judge as the paper's claims are judged, item by item, but that in exploration one run a side
counts, with a fixed reach in the place of its interval.
"""

from collections.abc import Callable

import numpy as np
import scipy

from powerstep_repro.evidence.curves import read_strand
from powerstep_repro.evidence.sources import Evidence, Source
from powerstep_repro.evidence.statistics import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    interval,
)
from powerstep_repro.evidence.tuned import best_rate
from powerstep_repro.evidence.verdicts import Item, judge
from powerstep_repro.evidence.words import rate_label, signed, variant_label
from powerstep_repro.paper import INTERVAL
from powerstep_repro.paper.claims import Side
from powerstep_repro.paper.own_claims import EXPLORATION, ONE_RUN, OwnClaim
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import NOT_RUN


def _ends(cell: Cell | None) -> dict[int, float]:
    """Return final losses by seed; a run that diverged ends at infinity."""
    if cell is None:
        return {}
    finals = {seed: final.loss for seed, final in cell.outcome.finals.items()}
    return finals | dict.fromkeys(cell.outcome.diverged, float("inf"))


def _above(claim: OwnClaim, values: np.ndarray, bound: float) -> tuple[str, str]:
    """Judge "above the bound", and say the values' mean with its interval; values: (seeds,)."""
    if not np.isfinite(values).all():
        all_up, all_down = (values == np.inf).all(), (values == -np.inf).all()
        verdict = REPRODUCED if all_up else NOT_REPRODUCED if all_down else INCONCLUSIVE
        return verdict, f"a run diverged, n = {len(values)}"
    gap = interval(values)
    low, high = gap.low, gap.high
    text = signed(gap.mean)
    if gap.has_interval:
        text += f" [{signed(low)}, {signed(high)}]"
    elif claim.stage == EXPLORATION:
        low, high = gap.mean - ONE_RUN, gap.mean + ONE_RUN
        text += f" ± {ONE_RUN:g}"
    text += f", n = {gap.n}"
    if low is None:
        return INCONCLUSIVE, text
    verdict = REPRODUCED if low > bound else NOT_REPRODUCED if high < bound else INCONCLUSIVE
    return verdict, text


def _opposite(verdict: str) -> str:
    return {REPRODUCED: NOT_REPRODUCED, NOT_REPRODUCED: REPRODUCED}.get(verdict, verdict)


def _pair(claim: OwnClaim, source: Source, side: Side) -> list[Cell | None]:
    """The side's cell, and that of the same side under the values of ``versus``."""
    asked = [{**side.where}, {**side.where, **claim.versus}]
    found = [source.find(claim.models[0], Side(side.optimizer, where)) for where in asked]
    return [cells[0] if cells else None for cells in found]


def _costs(claim: OwnClaim, evidence: Evidence, turn: Callable[[str], str]) -> list[Item]:
    source, items = evidence.source(claim.sweep), []
    for side in claim.subjects:
        cells = _pair(claim, source, side)
        what = ", ".join([variant_label(cells[0]), *(f"{k} {side.where[k]}" for k in claim.versus)])
        if claim.reference:
            cells += _pair(claim, source, claim.reference)
        ends = [_ends(cell) for cell in cells]
        seeds = sorted(set.intersection(*map(set, ends)))
        if not seeds:
            items.append(Item(what, NOT_RUN, NOT_RUN))
            continue
        table = np.array([[end[seed] for seed in seeds] for end in ends])  # (2 or 4, seeds)
        with np.errstate(invalid="ignore"):  # infinity less infinity says nothing
            costs = table[::2] - table[1::2]
            values = costs[0] - costs[1] if claim.reference else costs[0]
        verdict, text = _above(claim, values, claim.bound)
        losses = " against ".join(f"{loss:.3f}" for loss in table[:2].mean(axis=1))
        items.append(Item(what, turn(verdict), f"{text} ({losses})"))
    return items


@judge("cost")
def _cost(claim: OwnClaim, evidence: Evidence) -> list[Item]:
    return _costs(claim, evidence, lambda verdict: verdict)


@judge("cheap")
def _cheap(claim: OwnClaim, evidence: Evidence) -> list[Item]:
    return _costs(claim, evidence, _opposite)


def rise(losses: np.ndarray) -> float:
    """Return how far a run's losses, (k,), rise above the lowest that came before."""
    return float((losses - np.minimum.accumulate(losses)).max()) if len(losses) else 0.0


def _collapses(claim: OwnClaim, evidence: Evidence, turn: Callable[[str], str]) -> list[Item]:
    source, items = evidence.source(claim.sweep), []
    for side in claim.subjects:
        cell = source.find(claim.models[0], side)[0]
        words = [f"{key.split('.')[-1]} {value}" for key, value in side.where.items()]
        what = ", ".join([variant_label(cell), *words])
        ended = {*cell.outcome.finals, *cell.outcome.diverged}
        strands = [
            read_strand(cell, run)
            for run in cell.runs
            if int(cell.loaded.runs.at[run, "seed"]) in ended
        ]
        if not strands:
            items.append(Item(what, NOT_RUN, NOT_RUN))
            continue
        rises = [rise(strand.smooth) for strand in strands]
        diverged = [strand.status == "diverged" for strand in strands]
        fell = [by >= claim.bound or d for by, d in zip(rises, diverged, strict=True)]
        verdict = REPRODUCED if all(fell) else INCONCLUSIVE if any(fell) else NOT_REPRODUCED
        if claim.stage != EXPLORATION and len(fell) < 2:
            verdict = INCONCLUSIVE
        text = f"rises by {', '.join(f'{by:.2f}' for by in rises)} nats at most"
        text += f"; ends at {cell.outcome.words()}, n = {len(fell)}"
        items.append(Item(what, turn(verdict), text))
    return items


@judge("blows_up")
def _blows_up(claim: OwnClaim, evidence: Evidence) -> list[Item]:
    return _collapses(claim, evidence, lambda verdict: verdict)


@judge("stays")
def _stays(claim: OwnClaim, evidence: Evidence) -> list[Item]:
    return _collapses(claim, evidence, _opposite)


@judge("half")
def _half(claim: OwnClaim, evidence: Evidence) -> list[Item]:
    source, best, edges = evidence.source(claim.sweep), [], []
    what = "gap − half of the gap of PowerStep everywhere"
    for side in (claim.subjects[0], claim.third, claim.reference):
        cells = {cell.config["lr"]: cell for cell in source.find(claim.models[0], side)}
        ran = {lr: cell.outcome.mean for lr, cell in cells.items() if cell.outcome.n}
        chosen = best_rate(ran)
        if chosen is None:
            return [Item(what, NOT_RUN, NOT_RUN)]
        best.append(cells[chosen[0]])
        if chosen[1]:
            label = variant_label(best[-1])
            edge = "the only one run" if chosen[1] == "only" else f"the {chosen[1]} run"
            edges.append(f"{label}'s best rate {rate_label(chosen[0])} is {edge}")
    ends = [{seed: final.loss for seed, final in c.outcome.finals.items()} for c in best]
    seeds = sorted(set.intersection(*map(set, ends)))
    words = [
        f"{variant_label(c)} {c.outcome.words()} at {rate_label(c.config['lr'])}" for c in best
    ]
    if not seeds:
        return [Item(what, INCONCLUSIVE, "; ".join([*words, "no seed was run on all sides"]))]
    ours, plain, adamw = (np.array([end[seed] for seed in seeds]) for end in ends)
    # Below zero where (ours − adamw) < (plain − adamw) / 2.
    verdict, text = _above(claim, (ours - adamw) - (plain - adamw) / 2, 0.0)
    verdict = INCONCLUSIVE if edges else _opposite(verdict)
    return [Item(what, verdict, "; ".join([text, *words, *edges]))]


@judge("spread")
def _spread(claim: OwnClaim, evidence: Evidence) -> list[Item]:
    cells = evidence.source(claim.sweep).find(claim.models[0], claim.subjects[0])
    first = next(cell for cell in cells if not cell.value("repeat"))
    seeds = {seed: final.loss for seed, final in first.outcome.finals.items()}
    repeated = first.config["seed"]
    reruns = [c.outcome.finals[repeated].loss for c in cells if repeated in c.outcome.finals]
    what = "standard deviation over reruns ÷ over seeds"
    if min(len(reruns), len(seeds)) < 3:
        text = f"{len(reruns)} equal runs and {len(seeds)} seeds, 3 of each are needed"
        return [Item(what, INCONCLUSIVE if reruns or seeds else NOT_RUN, text)]
    over = [float(np.std(values, ddof=1)) for values in (reruns, [*seeds.values()])]
    if not over[1]:
        return [Item(what, INCONCLUSIVE, "the seeds end alike")]
    ratio, freedom = over[0] / over[1], (len(reruns) - 1, len(seeds) - 1)
    tails = (0.5 + INTERVAL / 2, 0.5 - INTERVAL / 2)
    low, high = (ratio / float(np.sqrt(scipy.stats.f.ppf(tail, *freedom))) for tail in tails)
    verdict = REPRODUCED if ratio >= claim.bound and high >= 1 else INCONCLUSIVE
    verdict = NOT_REPRODUCED if high < 1 else verdict
    text = f"{ratio:.2f} [{low:.2f}, {high:.2f}] ({over[0]:.4f} over {len(reruns)} equal runs, "
    return [Item(what, verdict, f"{text}{over[1]:.4f} over {len(seeds)} seeds)")]
