"""Intervals, verdicts and the few numbers that tables and claims are made of.

Runs of two configurations are compared in pairs: same seed (same initial weights, same batches),
same validation windows. Pairing removes what both share, which is nearly all of the spread.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy  # loads scipy.stats at its first use, which a figure does not need

from powerstep_repro.paper import INTERVAL, MARGIN

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
INCONCLUSIVE = "inconclusive"
NOT_RUN = "not run"
#: What was run speaks of another model than the claim: shown, but it settles nothing.
ELSEWHERE = "another model"


@dataclass(frozen=True)
class Final:
    """Where one run ended: its validation loss, and that of each window (nats a token).

    ``place`` is what two runs must share to be alike in all but their configs: device and revision.
    """

    loss: float
    windows: np.ndarray | None = None
    place: tuple[str, str] | None = None


@dataclass(frozen=True)
class Gap:
    """A mean paired difference with its interval; no interval (None) for fewer than two seeds.

    Attributes:
        mean: mean of (subject - reference) over the shared seeds.
        low: lower end of the interval.
        high: upper end of the interval.
        n: number of shared seeds.
        paired_on: what the interval pairs, in words.
        seeds: those that were compared.
        without_windows: the shared seeds left out, for one side's windows are missing.
        unlike: the seeds whose two runs are of different devices or revisions.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    paired_on: str = "seeds"
    seeds: tuple[int, ...] = ()
    without_windows: tuple[int, ...] = ()
    unlike: tuple[int, ...] = ()

    @property
    def has_interval(self) -> bool:
        """Whether there are seeds enough for an interval."""
        return self.low is not None

    def inside(self, margin: float) -> bool:
        """Whether the whole interval lies within ±margin."""
        return self.has_interval and -margin <= self.low and self.high <= margin

    def outside(self, margin: float) -> bool:
        """Whether the whole interval lies on one side of ±margin."""
        return self.has_interval and (self.low > margin or self.high < -margin)


def interval(values: np.ndarray, coverage: float = INTERVAL) -> Gap:
    """Return the mean of values with Student's interval; values: (n,)."""
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n < 2:
        return Gap(float(values.mean()) if n else float("nan"), None, None, n)
    test = scipy.stats.ttest_1samp(values, 0.0) if values.std() > 0 else None
    if test is None:  # all equal: an interval of no width
        return Gap(float(values[0]), float(values[0]), float(values[0]), n)
    ends = test.confidence_interval(coverage)
    return Gap(float(values.mean()), float(ends.low), float(ends.high), n)


def paired_gap(
    subject: Mapping[int, Final], reference: Mapping[int, Final], coverage: float = INTERVAL
) -> Gap | None:
    """Compare two configurations over the seeds that both have.

    With one loss per validation window on both sides, seeds and windows are both sampled: the
    differences form a table of seeds by windows, and the variance of their mean follows from the
    two-way random-effects layout (Satterthwaite's degrees of freedom), in an interval that is at
    least as wide as Student's over the seeds. A pair that lacks them is then left out: to keep it
    would mean to leave out the windows' part of the spread, and a lost file must not narrow an
    interval. Where no pair has them, only the seeds are sampled.

    Args:
        subject: final losses by seed.
        reference: final losses by seed.
        coverage: coverage of the interval.

    Returns:
        The gap, or None when no seed is shared.
    """
    seeds = sorted(set(subject) & set(reference))
    if not seeds:
        return None
    pairs = {seed: (subject[seed], reference[seed]) for seed in seeds}
    counts = {seed: count for seed, pair in pairs.items() if (count := _windows(*pair))}
    if counts:
        usual = Counter(counts.values()).most_common(1)[0][0]
        pairs = {seed: pairs[seed] for seed, count in counts.items() if count == usual}
    facts = {
        "seeds": tuple(pairs),
        "without_windows": tuple(seed for seed in seeds if seed not in pairs),
        "unlike": tuple(seed for seed, (a, b) in pairs.items() if a.place != b.place),
    }
    by_seed = np.array([a.loss - b.loss for a, b in pairs.values()])
    if not counts or len(pairs) < 2:
        return replace(interval(by_seed, coverage), **facts)
    table = np.stack([a.windows - b.windows for a, b in pairs.values()])  # (seeds, windows)
    return replace(_two_way(table, by_seed, coverage), **facts)


def _windows(subject: Final, reference: Final) -> int:
    """How many windows both sides have a loss of; 0 if they do not fit."""
    a, b = subject.windows, reference.windows
    return len(a) if a is not None and b is not None and 1 < len(a) == len(b) else 0


def _two_way(table: np.ndarray, by_seed: np.ndarray, coverage: float) -> Gap:
    n, windows = table.shape
    mean = float(by_seed.mean())
    seed_means, window_means = table.mean(axis=1), table.mean(axis=0)
    residual = table - seed_means[:, None] - window_means[None, :] + table.mean()
    # Mean squares of the layout, each already divided by the number of cells.
    ms_seed = seed_means.var(ddof=1) / n
    ms_window = window_means.var(ddof=1) / windows
    ms_error = (residual**2).sum() / ((n - 1) * (windows - 1)) / (n * windows)
    # The error is in both terms; taking it off once must not make the sum less than either.
    variance = max(ms_seed + ms_window - ms_error, ms_seed, ms_window)
    words = f"seeds and {windows} windows"
    if variance == 0:
        return Gap(mean, mean, mean, n, words)
    spread = ms_seed**2 / (n - 1) + ms_window**2 / (windows - 1)
    spread += ms_error**2 / ((n - 1) * (windows - 1))
    freedom = max(variance**2 / spread, 1.0) if spread > 0 else float(n - 1)
    low, high = scipy.stats.t.interval(coverage, freedom, loc=mean, scale=float(np.sqrt(variance)))
    # More degrees of freedom must not make it narrower than over the seeds alone.
    seeds = interval(by_seed, coverage)
    low, high = min(low, seeds.low), max(high, seeds.high)
    return Gap(mean, float(low), float(high), n, words)


def parity(gap: Gap | None, margin: float = MARGIN) -> str:
    """Judge "these two end alike": inside the margin, wholly outside it, or neither."""
    if gap is None:
        return NOT_RUN
    if gap.inside(margin):
        return REPRODUCED
    return NOT_REPRODUCED if gap.outside(margin) else INCONCLUSIVE


def order(gap: Gap | None) -> str:
    """Judge "the subject ends higher than the reference" by the interval's side of zero."""
    if gap is None:
        return NOT_RUN
    if gap.has_interval and gap.low > 0:
        return REPRODUCED
    return NOT_REPRODUCED if gap.has_interval and gap.high < 0 else INCONCLUSIVE


def same_side(gap: Gap | None, paper_gap: float, margin: float = MARGIN) -> str:
    """Judge one printed cell by the side of the margin on which the paper's own gap to AdamW lies.

    A printed gap within the margin says parity, one beyond it says better or worse. Our interval
    wholly on the paper's side reproduces the cell; wholly on another side it does not.
    """
    if abs(paper_gap) <= margin:
        return parity(gap, margin)
    if gap is None:
        return NOT_RUN
    sign = 1.0 if paper_gap > 0 else -1.0
    near, far = sorted((sign * gap.low, sign * gap.high)) if gap.has_interval else (None, None)
    if near is None:
        return INCONCLUSIVE
    if near > margin:
        return REPRODUCED
    return NOT_REPRODUCED if far < margin else INCONCLUSIVE


def overall(verdicts: list[str], universal: bool = True) -> str:
    """Join the verdicts on a claim's items: one refuted refutes, all that ran must reproduce.

    Of a universal claim every item must have been run, and have settled something.
    """
    ran = [v for v in verdicts if v not in (NOT_RUN, ELSEWHERE)]
    if not ran:
        return INCONCLUSIVE if ELSEWHERE in verdicts else NOT_RUN
    if NOT_REPRODUCED in ran:
        return NOT_REPRODUCED
    whole = len(ran) == len(verdicts) or not universal
    return REPRODUCED if whole and all(v == REPRODUCED for v in ran) else INCONCLUSIVE


def slope(x: np.ndarray, y: np.ndarray, coverage: float = INTERVAL) -> Gap:
    """Fit a line through (x, y), each (k,), and return its slope with its interval (k >= 3)."""
    fit = scipy.stats.linregress(x, y)
    if len(x) < 3:
        return Gap(float(fit.slope), None, None, len(x), "models")
    reach = float(scipy.stats.t.ppf(0.5 + coverage / 2, len(x) - 2) * fit.stderr)
    return Gap(
        float(fit.slope), float(fit.slope) - reach, float(fit.slope) + reach, len(x), "models"
    )


@dataclass(frozen=True)
class BestRate:
    """The learning rate at which an optimizer ends lowest, and whether the grid may hide better.

    Attributes:
        lr: the best rate of those that were run.
        rates: all rates that were run, ascending.
        edge: ``lowest`` or ``highest`` if the best is the grid's end, ``only`` for a grid of one,
            else None.
    """

    lr: float
    rates: tuple[float, ...]
    edge: str | None


def best_rate(losses: Mapping[float, float]) -> BestRate | None:
    """Choose the rate with the lowest loss; a diverged run enters as infinity and never wins.

    Args:
        losses: mean final validation loss by learning rate.

    Returns:
        The choice, or None if no rate has a finite loss.
    """
    finite = {lr: loss for lr, loss in losses.items() if np.isfinite(loss)}
    if not finite:
        return None
    rates = tuple(sorted(losses))
    best = min(sorted(finite), key=finite.__getitem__)
    edge = None
    if len(rates) == 1:
        edge = "only"
    elif best in (rates[0], rates[-1]):
        edge = "lowest" if best == rates[0] else "highest"
    return BestRate(best, rates, edge)


def first_step_at_or_below(steps: np.ndarray, losses: np.ndarray, target: float) -> int | None:
    """Return the first step whose loss is at most target, or None; both (k,), steps ascending."""
    hits = np.flatnonzero(np.asarray(losses) <= target)
    return int(steps[hits[0]]) if len(hits) else None
