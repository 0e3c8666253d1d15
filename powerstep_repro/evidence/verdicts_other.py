"""Judges of the other claims: on learning rates, early progress, speed, memory and codes."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from powerstep_repro.evidence.compare import gap_of, gap_words
from powerstep_repro.evidence.curves import read_strand
from powerstep_repro.evidence.memory import state_bytes_per_param
from powerstep_repro.evidence.sources import Evidence
from powerstep_repro.evidence.statistics import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    REPRODUCED,
    interval,
    order,
)
from powerstep_repro.evidence.tuned import judge_tuned, tuned
from powerstep_repro.evidence.verdicts import Item, at_full_size, judge, pairs
from powerstep_repro.evidence.words import rate_label, sized_label
from powerstep_repro.paper import MODELS, Claim, model_label, optimizer_label
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import NOT_RUN, where_it_ran
from powerstep_repro.utilisation import settled


@judge("parity_tuned")
def _parity_tuned(claim: Claim, evidence: Evidence) -> list[Item]:
    at_best = tuned(evidence)
    sides = (*claim.subjects, claim.reference)
    ours, theirs = (at_best[side.optimizer] for side in sides)
    what = f"{model_label(claim.models[0])}: {optimizer_label(sides[0].optimizer)}"
    if not (ours.ended and theirs.ended):
        return [Item(what, NOT_RUN, NOT_RUN)]
    text = f"at {rate_label(ours.lr)} against {rate_label(theirs.lr)}: gap {gap_words(ours.gap)}"
    text += f", n = {ours.gap.n if ours.gap else ours.cell.outcome.n}"
    for side in (ours, theirs):
        if side.edge:
            edge = "the only one run" if side.edge == "only" else f"the {side.edge} run"
            label = optimizer_label(side.cell.optimizer)
            text += f"; {label}'s best rate {rate_label(side.lr)} is {edge}"
    return [Item(what, judge_tuned(ours, theirs, claim.bound), text)]


@judge("monotone")
def _monotone(claim: Claim, evidence: Evidence) -> list[Item]:
    source, items = evidence.source(claim.sweep), []
    for side in claim.subjects:
        cells = sorted(source.find(claim.models[0], side), key=lambda cell: cell.config["lr"])
        ran = [cell for cell in cells if cell.outcome.n]
        what = f"{model_label(claim.models[0])}: {optimizer_label(side.optimizer)}"
        if len(ran) < 2:
            items.append(Item(what, NOT_RUN, f"{len(ran)} of {len(cells)} rates were run"))
            continue
        whole = gap_of(ran[-1], ran[0])
        losses = ", ".join(f"{rate_label(c.config['lr'])}: {c.outcome.words()}" for c in ran)
        n = whole.n if whole else 0
        text = f"{losses}; largest − smallest {gap_words(whole)}, n = {n}"
        if len(ran) < len(cells):
            text += f"; {len(cells) - len(ran)} of {len(cells)} rates not run"
        items.append(Item(what, _open_if_part(_falls(ran), ran, cells), text))
    return items


def _falls(ran: Sequence[Cell]) -> str:
    """Judge "the larger the rate, the lower the end" on cells in the order of their rates."""
    low, high = ran[0], ran[-1]
    if high.outcome.diverged and not high.outcome.finals:
        return NOT_REPRODUCED if high.outcome.n > 1 else INCONCLUSIVE
    best = min(ran, key=lambda cell: cell.outcome.mean)
    whole, to_best = gap_of(high, low), gap_of(high, best)
    if whole is None or not whole.has_interval:
        return INCONCLUSIVE
    if whole.low > 0 or (best is not high and to_best and order(to_best) == REPRODUCED):
        return NOT_REPRODUCED
    return REPRODUCED if best is high and whole.high < 0 else INCONCLUSIVE


def _open_if_part(verdict: str, ran: Sequence, planned: Sequence) -> str:
    """What holds at the rates that were run need not hold at those that were not."""
    return INCONCLUSIVE if verdict == REPRODUCED and len(ran) < len(planned) else verdict


@judge("alike")
def _alike(claim: Claim, evidence: Evidence) -> list[Item]:
    what = "largest deviation of the gap at one rate from its mean over the rates"
    both = [(s, r) for _, s, r in pairs(claim, evidence.source(claim.sweep)) if r is not None]
    ran = [(s.outcome.finals, r.outcome.finals) for s, r in both]
    ran = [(ours, theirs) for ours, theirs in ran if ours and theirs]
    if len(ran) < 2:
        return [Item(what, NOT_RUN, f"{len(ran)} of {len(both)} rates were run on both sides")]
    seeds = sorted(set.intersection(*({*ours} & {*theirs} for ours, theirs in ran)))
    if not seeds:
        return [Item(what, INCONCLUSIVE, "no seed was run at every rate on both sides")]
    gaps = np.array([[ours[s].loss - theirs[s].loss for s in seeds] for ours, theirs in ran])
    spread = interval(np.abs(gaps - gaps.mean(axis=0)).max(axis=0))  # over the seeds
    text = f"{gap_words(spread)} over {len(ran)} of {len(both)} rates, n = {spread.n}"
    if not spread.has_interval:
        return [Item(what, INCONCLUSIVE, text)]
    if spread.low > claim.bound:
        return [Item(what, NOT_REPRODUCED, text)]
    verdict = REPRODUCED if spread.high < claim.bound else INCONCLUSIVE
    return [Item(what, _open_if_part(verdict, ran, both), text)]


@judge("early")
def _early(claim: Claim, evidence: Evidence) -> list[Item]:
    items = []
    for what, subject, reference in pairs(claim, evidence.source(claim.sweep)):
        ours, theirs = _early_losses(subject, claim.bound), _early_losses(reference, claim.bound)
        seeds = sorted({*ours} & {*theirs})
        if not seeds:
            items.append(Item(what, NOT_RUN, NOT_RUN))
            continue
        gap = interval(np.array([ours[s] - theirs[s] for s in seeds]))
        text = f"gap at {claim.bound:.0%} of the steps {gap_words(gap)}, n = {gap.n}"
        items.append(Item(what, *at_full_size(subject, order(gap), text)))
    return items


def _early_losses(cell: Cell | None, fraction: float) -> dict[int, float]:
    """The smoothed training loss at a fraction of the steps, by seed, of runs that got there."""
    losses = {}
    for run in cell.runs if cell is not None else ():
        strand = read_strand(cell, run)
        rows = np.flatnonzero(strand.steps >= fraction * cell.config["steps"])
        if len(rows):
            losses[int(cell.loaded.runs.at[run, "seed"])] = float(strand.smooth[rows[0]])
    return losses


@judge("speed")
def _speed(claim: Claim, evidence: Evidence) -> list[Item]:
    items = []
    for what, subject, reference in pairs(claim, evidence.source(claim.sweep)):
        ours, theirs = _speeds(subject), _speeds(reference) if reference else {}
        shared = sorted({*ours} & {*theirs})
        if not shared:
            items.append(Item(what, NOT_RUN, NOT_RUN))
            continue
        ratio = interval(np.array([ours[key] / theirs[key] for key in shared]))
        text = f"{ratio.mean:.3f} of AdamW's tokens per second"
        verdict = INCONCLUSIVE
        if ratio.has_interval:
            text += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
            low, high = 1 - claim.bound, 1 + claim.bound
            if low <= ratio.low and ratio.high <= high:
                verdict = REPRODUCED
            elif ratio.low > high or ratio.high < low:
                verdict = NOT_REPRODUCED
        devices = ", ".join(sorted({device for _, device, _ in shared}))
        text += f", n = {ratio.n} ({devices})"
        items.append(Item(what, *at_full_size(subject, verdict, text)))
    return items


def _speeds(cell: Cell) -> dict[tuple[int, str, str], float]:
    """Median tokens per second after the first tenth of the log, by seed, device and revision."""
    speeds = {}
    for run in cell.runs:
        log = cell.loaded.history(run, columns=["tokens_per_s"])["tokens_per_s"]
        seed = int(cell.loaded.runs.at[run, "seed"])
        if len(log):
            speeds[(seed, *where_it_ran(cell.loaded, run))] = float(settled(log).median())
    return speeds


@judge("memory")
def _memory(claim: Claim, evidence: Evidence) -> list[Item]:
    size = state_bytes_per_param()
    names = claim.reference.optimizer, claim.subjects[0].optimizer
    low, high = claim.bound

    def verdict(ratio: float) -> str:
        return REPRODUCED if low <= ratio <= high else NOT_REPRODUCED

    ratio = size[names[0]] / size[names[1]]
    masters = (size[names[0]] + 4) / (size[names[1]] + 4)
    text = f"{ratio:.2f} by arithmetic ({masters:.2f} with fp32 master copies counted)"
    items = [Item("bytes of state a parameter", verdict(ratio), text)]
    runs, configs = evidence.loaded.runs, evidence.loaded.configs
    alone = np.array([not configs[run].get("groups") for run in runs.index], dtype=bool)
    runs = runs[runs["model.name"].isin(MODELS) & alone]  # no other rule beside
    by_size = runs.groupby(["model.name", "n_params", "optimizer.name"])["optimizer_state_bytes"]
    measured = by_size.median().unstack("optimizer.name").reindex(columns=names).dropna()
    for (model, n_params), (reference, own) in sorted(measured.iterrows()):
        found = reference / own
        label = sized_label(model, n_params)
        items.append(Item(f"{label}, measured", verdict(found), f"{found:.2f}"))
    return items


@judge("codes")
def _codes(claim: Claim, evidence: Evidence) -> list[Item]:
    share = codes_that_differ()
    verdict = REPRODUCED if share > claim.bound else NOT_REPRODUCED
    # Below, how ties are rounded depends on the platform.
    shown = f"{share:.2%}" if share >= 1e-5 else "fewer than 1 in 100,000"
    text = f"{shown} of the codes differ over 300 steps, computed here"
    return [Item("linear int8, blocks of 128, γ = 0.9", verdict, text)]


@cache
def codes_that_differ(blocks: int = 256, steps: int = 300, gamma: float = 0.9) -> float:
    """Return the share of int8 codes in which a heavy-ball buffer and an average differ.

    Both see the same gradients, blocks of 128 with scales over two decades, and are coded
    linearly by the block's largest magnitude after every step.
    """
    rng = np.random.default_rng(0)
    scales = 10 ** rng.uniform(-2, 0, (blocks, 128)).astype(np.float32)
    means = rng.standard_normal((blocks, 128), dtype=np.float32)
    heavy = average = np.zeros((blocks, 128), dtype=np.float32)
    differing = 0
    for _ in range(steps):
        gradient = scales * (means + rng.standard_normal((blocks, 128), dtype=np.float32))
        heavy, heavy_codes = _coded(np.float32(gamma) * heavy + gradient)
        average, codes = _coded(np.float32(gamma) * average + np.float32(1 - gamma) * gradient)
        differing += int((heavy_codes != codes).sum())
    return differing / (steps * blocks * 128)


def _coded(buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a buffer after int8 and back, and its codes; a row is a block."""
    largest = np.abs(buffer).max(axis=1, keepdims=True)
    codes = np.rint(127 * buffer / largest).astype(np.int8)
    return codes.astype(np.float32) * largest / np.float32(127), codes
