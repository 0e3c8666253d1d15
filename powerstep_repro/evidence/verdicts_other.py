"""Judges of the other claims: on learning rates, early progress, speed, memory and codes."""

import numpy as np
import pandas as pd

from powerstep_repro.evidence import Cell, Evidence, rate_label, sized_label, where_it_ran
from powerstep_repro.evidence.compare import gap_of, gap_words
from powerstep_repro.evidence.curves import read_strand
from powerstep_repro.evidence.memory import state_bytes_per_param
from powerstep_repro.evidence.statistics import (
    INCONCLUSIVE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    interval,
    order,
)
from powerstep_repro.evidence.tuned import judge_tuned, tuned_cells
from powerstep_repro.evidence.verdicts import Item, at_full_size, judge, pairs
from powerstep_repro.paper import Claim, model_label, optimizer_label
from powerstep_repro.utilisation import settled


@judge("parity_tuned")
def _parity_tuned(claim: Claim, evidence: Evidence) -> list[Item]:
    tuned = tuned_cells(evidence)
    (side,) = claim.subjects
    ours, theirs = tuned[side.optimizer], tuned[claim.reference.optimizer]
    what = f"{model_label(claim.models[0])}: {optimizer_label(side.optimizer)}"
    if ours[0] is None or theirs[0] is None:
        return [Item(what, NOT_RUN, NOT_RUN)]
    gap = gap_of(ours[1], theirs[1])
    edges = [
        f"; {optimizer_label(s.optimizer)}'s best rate {rate_label(best.lr)} is "
        + ("the only one run" if best.edge == "only" else f"the {best.edge} run")
        for s, (best, *_) in ((side, ours), (claim.reference, theirs))
        if best.edge
    ]
    n = gap.n if gap else ours[1].outcome.n
    text = f"at {rate_label(ours[0].lr)} against {rate_label(theirs[0].lr)}: gap {gap_words(gap)}"
    verdict = judge_tuned(ours, theirs, claim.bound)
    return [Item(what, verdict, f"{text}, n = {n}{''.join(edges)}", n)]


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
        low, high = ran[0], ran[-1]
        best = min(ran, key=lambda cell: cell.outcome.mean)
        whole, to_best = gap_of(high, low), gap_of(high, best)
        losses = ", ".join(f"{rate_label(c.config['lr'])}: {c.outcome.words()}" for c in ran)
        n = whole.n if whole else 0
        text = f"{losses}; largest − smallest {gap_words(whole)}, n = {n}"
        if len(ran) < len(cells):
            text += f"; {len(cells) - len(ran)} of {len(cells)} rates not run"
        verdict = _rising(best is high, whole, to_best, high)
        items.append(Item(what, _open_if_part(verdict, ran, cells), text, n))
    return items


def _open_if_part(verdict: str, ran: list, planned: list) -> str:
    """What holds at the rates that were run need not hold at those that were not."""
    return INCONCLUSIVE if verdict == REPRODUCED and len(ran) < len(planned) else verdict


def _rising(largest_is_best: bool, whole, to_best, high: Cell) -> str:
    if high.outcome.diverged and not high.outcome.finals:
        return NOT_REPRODUCED if high.outcome.n > 1 else INCONCLUSIVE
    if whole is None or not whole.has_interval:
        return INCONCLUSIVE
    if whole.low > 0 or (not largest_is_best and to_best and order(to_best) == REPRODUCED):
        return NOT_REPRODUCED
    return REPRODUCED if largest_is_best and whole.high < 0 else INCONCLUSIVE


@judge("alike")
def _alike(claim: Claim, evidence: Evidence) -> list[Item]:
    source = evidence.source(claim.sweep)
    what = "largest deviation of the gap at one rate from its mean over the rates"
    both = [(s, r) for _, s, r in pairs(claim, source) if r is not None]
    ran = [(s, r) for s, r in both if s.outcome.finals and r.outcome.finals]
    if len(ran) < 2:
        return [Item(what, NOT_RUN, f"{len(ran)} of {len(both)} rates were run on both sides")]
    seeds = set.intersection(*(set(s.outcome.finals) & set(r.outcome.finals) for s, r in ran))
    largest = []
    for seed in sorted(seeds):
        gaps = [s.outcome.finals[seed].loss - r.outcome.finals[seed].loss for s, r in ran]
        largest.append(np.abs(np.array(gaps) - np.mean(gaps)).max())
    if not largest:
        return [Item(what, INCONCLUSIVE, "no seed was run at every rate on both sides")]
    spread = interval(np.array(largest))
    text = f"{gap_words(spread)} over {len(ran)} of {len(both)} rates, n = {spread.n}"
    if not spread.has_interval:
        return [Item(what, INCONCLUSIVE, text, spread.n)]
    verdict = REPRODUCED if spread.high < claim.bound else INCONCLUSIVE
    verdict = _open_if_part(verdict, ran, both)
    return [Item(what, NOT_REPRODUCED if spread.low > claim.bound else verdict, text, spread.n)]


@judge("early")
def _early(claim: Claim, evidence: Evidence) -> list[Item]:
    items = []
    for what, subject, reference in pairs(claim, evidence.source(claim.sweep)):
        ours, theirs = _early_losses(subject, claim.bound), _early_losses(reference, claim.bound)
        seeds = sorted(set(ours) & set(theirs))
        if not seeds:
            items.append(Item(what, NOT_RUN, NOT_RUN))
            continue
        gap = interval(np.array([ours[s] - theirs[s] for s in seeds]))
        text = f"gap at {claim.bound:.0%} of the steps {gap_words(gap)}, n = {gap.n}"
        items.append(Item(what, *at_full_size(subject, order(gap), text), gap.n))
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
        shared = sorted(set(ours) & set(theirs))
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
        items.append(Item(what, *at_full_size(subject, verdict, text), ratio.n))
    return items


def _speeds(cell: Cell) -> dict[tuple[int, str, str], float]:
    """Median tokens per second after the first tenth of the log, by seed, device and revision."""
    speeds = {}
    for run in cell.runs:
        log = cell.loaded.history(run, columns=["tokens_per_s"])["tokens_per_s"]
        median = float(settled(log).median()) if len(log) else float("nan")
        if np.isfinite(median) and median > 0:
            device, revision = where_it_ran(cell.loaded, run)
            speeds[int(cell.loaded.runs.at[run, "seed"]), device, revision] = median
    return speeds


@judge("memory")
def _memory(claim: Claim, evidence: Evidence) -> list[Item]:
    size = state_bytes_per_param()
    (side,) = claim.subjects
    ratio = size[claim.reference.optimizer] / size[side.optimizer]
    low, high = claim.bound
    verdict = REPRODUCED if low <= ratio <= high else NOT_REPRODUCED
    masters = (size[claim.reference.optimizer] + 4) / (size[side.optimizer] + 4)
    text = f"{ratio:.2f} by arithmetic ({masters:.2f} with fp32 master copies counted)"
    items = [Item("bytes of state a parameter", verdict, text)]
    runs = evidence.loaded.runs
    sized = [sized_label(*pair) for pair in runs[["model.name", "n_params"]].to_numpy()]
    labels = pd.Series(sized, index=runs.index, dtype=object)
    for label in sorted(set(labels)):
        measured = {}
        for name in (claim.reference.optimizer, side.optimizer):
            rows = runs[(labels == label) & (runs["optimizer.name"] == name)]
            known = rows["optimizer_state_bytes"].dropna().astype(float)
            measured[name] = float(known.median()) if len(known) else None
        if all(measured.values()):
            found = measured[claim.reference.optimizer] / measured[side.optimizer]
            good = REPRODUCED if low <= found <= high else NOT_REPRODUCED
            items.append(Item(f"{label}, measured", good, f"{found:.2f}"))
    return items


@judge("codes")
def _codes(claim: Claim, evidence: Evidence) -> list[Item]:
    differing, total = codes_that_differ()
    verdict = REPRODUCED if differing > claim.bound * total else NOT_REPRODUCED
    text = f"{differing:,} of {total:,} codes differ over 300 steps, computed here"
    return [Item("linear int8, blocks of 128, γ = 0.9", verdict, text)]


def codes_that_differ(blocks: int = 256, steps: int = 300, gamma: float = 0.9) -> tuple[int, int]:
    """Count int8 codes in which a heavy-ball buffer and an exponential average differ.

    Both see the same gradients, blocks of 128 with scales over two decades, and are coded
    linearly by the block's largest magnitude after every step.

    Returns:
        How many codes differ, summed over the steps, and how many there were.
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
    return differing, steps * blocks * 128


def _coded(buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a buffer after int8 and back, and its codes; a row is a block."""
    largest = np.abs(buffer).max(axis=1, keepdims=True)
    codes = np.rint(127 * buffer / largest).astype(np.int8)
    return codes.astype(np.float32) * largest / np.float32(127), codes
