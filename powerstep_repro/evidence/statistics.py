"""Intervals, and the verdicts that an interval gives.

Two configurations are compared over seeds that both have and, for each, over the same validation
windows. The windows are where pairing helps: their spread, which both share, drops out. Equal seeds
(same initial weights, same batches) remove nothing that could be seen at 124M parameters: runs part
within steps.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy  # loads scipy.stats at its first use, which a figure does not need

from powerstep_repro.paper import INTERVAL, MARGIN
from powerstep_repro.runs.cells import NOT_RUN, Final

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
INCONCLUSIVE = "inconclusive"
#: What was run speaks of another model than the claim: shown, but it settles nothing.
ELSEWHERE = "another model"


@dataclass(frozen=True)
class Gap:
    """A mean difference with its interval; no interval (None) for fewer than two seeds.

    Attributes:
        mean: mean of (subject - reference) over the shared seeds.
        low: lower end of the interval.
        high: upper end of the interval.
        n: number of shared seeds.
        means: of the subject and of the reference, over these seeds.
        mixed: whether the two runs of a seed are of different devices or revisions.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    means: tuple[float, float] | None = None
    mixed: bool = False

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
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Gap(mean, None, None, n)
    reach = _reach(n - 1, values.std(ddof=1) / np.sqrt(n), coverage)
    return Gap(mean, mean - reach, mean + reach, n)


def _reach(freedom: float, error: float, coverage: float) -> float:
    """How far Student's interval reaches to either side, for a standard error."""
    return float(scipy.stats.t.ppf(0.5 + coverage / 2, freedom) * error)


def paired_gap(
    subject: Mapping[int, Final], reference: Mapping[int, Final], coverage: float = INTERVAL
) -> Gap | None:
    """Compare two configurations over the seeds that both have.

    With one loss per validation window on both sides, seeds and windows are both sampled, in an
    interval that is at least as wide as Student's over the seeds. A pair that lacks them is then
    left out: to keep it would mean to leave out the windows' part of the spread, and a lost file
    must not narrow an interval. Where no pair has them, only the seeds are sampled.

    Args:
        subject: final losses by seed.
        reference: final losses by seed.
        coverage: coverage of the interval.

    Returns:
        The gap, or None when no seed is shared.
    """
    pairs = {seed: (subject[seed], reference[seed]) for seed in sorted({*subject} & {*reference})}
    if not pairs:
        return None
    counts = {seed: count for seed, pair in pairs.items() if (count := _windows(*pair))}
    if counts:
        usual = Counter(counts.values()).most_common(1)[0][0]
        pairs = {seed: pairs[seed] for seed, count in counts.items() if count == usual}
    losses = np.array([(a.loss, b.loss) for a, b in pairs.values()])  # (seeds, 2)
    gap = interval(losses[:, 0] - losses[:, 1], coverage)
    if counts and gap.has_interval:
        table = np.stack([a.windows - b.windows for a, b in pairs.values()])  # (seeds, windows)
        reach = _two_way(table, coverage)
        # More degrees of freedom must not make it narrower than over the seeds alone.
        ends = min(gap.low, gap.mean - reach), max(gap.high, gap.mean + reach)
        gap = replace(gap, low=ends[0], high=ends[1])
    mixed = any(a.place != b.place for a, b in pairs.values())
    return replace(gap, means=tuple(losses.mean(axis=0).tolist()), mixed=mixed)


def _windows(subject: Final, reference: Final) -> int:
    """How many windows both sides have a loss of; 0 if they do not fit."""
    a, b = subject.windows, reference.windows
    return len(a) if a is not None and b is not None and 1 < len(a) == len(b) else 0


def _two_way(table: np.ndarray, coverage: float) -> float:
    """Return how far the interval of a table's mean reaches; table: (seeds, windows).

    The variance of the mean follows from the two-way random-effects layout, with Satterthwaite's
    degrees of freedom.
    """
    n, windows = table.shape
    by_seed, by_window = table.mean(axis=1), table.mean(axis=0)
    residual = table - by_seed[:, None] - by_window + table.mean()
    # Mean squares of the layout, each already divided by the number of cells.
    ms_seed, ms_window = by_seed.var(ddof=1) / n, by_window.var(ddof=1) / windows
    ms_error = (residual**2).sum() / ((n - 1) * (windows - 1)) / (n * windows)
    # The error is in both terms; taking it off once must not make the sum less than either.
    variance = max(ms_seed + ms_window - ms_error, ms_seed, ms_window)
    spread = ms_seed**2 / (n - 1) + ms_window**2 / (windows - 1)
    spread += ms_error**2 / ((n - 1) * (windows - 1))
    freedom = max(variance**2 / spread, 1.0) if spread > 0 else n - 1
    return _reach(freedom, np.sqrt(variance), coverage)


def slope(x: np.ndarray, y: np.ndarray, coverage: float = INTERVAL) -> Gap:
    """Fit a line through (x, y), each (k,) with k >= 3; return its slope with its interval."""
    fit = scipy.stats.linregress(x, y)
    reach = _reach(len(x) - 2, fit.stderr, coverage)
    return Gap(float(fit.slope), float(fit.slope) - reach, float(fit.slope) + reach, len(x))


def parity(gap: Gap, margin: float = MARGIN) -> str:
    """Judge "these two end alike": inside the margin, wholly outside it, or neither."""
    if gap.inside(margin):
        return REPRODUCED
    return NOT_REPRODUCED if gap.outside(margin) else INCONCLUSIVE


def order(gap: Gap) -> str:
    """Judge "the subject ends higher than the reference" by the interval's side of zero."""
    if not gap.has_interval or gap.low <= 0 <= gap.high:
        return INCONCLUSIVE
    return REPRODUCED if gap.low > 0 else NOT_REPRODUCED


def same_side(gap: Gap, paper_gap: float, margin: float = MARGIN) -> str:
    """Judge one printed cell by the side of the margin on which the paper's own gap to AdamW lies.

    A printed gap within the margin says parity, one beyond it says better or worse. Our interval
    wholly on the paper's side reproduces the cell; wholly on another side it does not.
    """
    if abs(paper_gap) <= margin:
        return parity(gap, margin)
    if not gap.has_interval:
        return INCONCLUSIVE
    near, far = (gap.low, gap.high) if paper_gap > 0 else (-gap.high, -gap.low)
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
