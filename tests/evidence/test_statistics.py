"""Guards the verdict rule and the paired intervals against independent computations."""

import numpy as np
import pytest
from scipy import stats

from powerstep_repro.evidence import statistics as st
from powerstep_repro.evidence.statistics import Gap, paired_gap
from powerstep_repro.evidence.tuned import best_rate, first_step_at_or_below
from powerstep_repro.runs import Final


def finals(losses, windows=None):
    return {
        seed: Final(loss, None if windows is None else windows[seed])
        for seed, loss in enumerate(losses)
    }


def test_seed_interval_is_students():
    subject, reference = [3.01, 3.03, 3.05], [3.00, 3.01, 3.01]
    gap = paired_gap(finals(subject), finals(reference))
    expected = stats.t.interval(
        0.9, 2, loc=np.mean([0.01, 0.02, 0.04]), scale=stats.sem([0.01, 0.02, 0.04])
    )
    assert (gap.low, gap.high) == pytest.approx(expected)
    assert gap.mean == pytest.approx(0.07 / 3)
    assert gap.n == 3


def test_only_shared_seeds_count_and_one_seed_has_no_interval():
    gap = paired_gap({1: Final(3.0), 2: Final(9.0)}, {1: Final(2.9), 3: Final(1.0)})
    assert gap.n == 1
    assert gap.mean == pytest.approx(0.1)
    assert gap.low is None
    assert gap.high is None
    assert paired_gap({1: Final(3.0)}, {2: Final(3.0)}) is None


def test_pairing_removes_what_seeds_and_windows_share():
    """Seeds 0.5 apart and windows 1.0 apart, on both sides alike, must not widen the interval."""
    rng = np.random.default_rng(1)
    seed_effect, window_effect = rng.normal(0, 0.5, (4, 1)), rng.normal(0, 1.0, (1, 400))
    base = 3 + seed_effect + window_effect
    other = base + 0.01 + rng.normal(0, 0.01, (4, 400))
    a = finals(other.mean(axis=1), other)
    b = finals(base.mean(axis=1), base)
    gap = paired_gap(a, b)
    assert gap.low < 0.01 < gap.high
    assert gap.high - gap.low < 0.01


def test_window_noise_widens_the_interval_of_agreeing_seeds():
    rng = np.random.default_rng(2)
    shared = 0.02 + rng.normal(0, 0.1, (1, 50)) + np.zeros((3, 50))  # the same on every seed
    zero = np.zeros((3, 50))
    gap = paired_gap(finals(shared.mean(axis=1), shared), finals(zero.mean(axis=1), zero))
    expected = stats.t.interval(0.9, 49, loc=shared[0].mean(), scale=stats.sem(shared[0]))
    assert (gap.low, gap.high) == pytest.approx(expected)


def test_windows_never_narrow_the_interval_over_seeds():
    """More degrees of freedom would, where seeds and windows spread alike."""
    rng = np.random.default_rng(4)
    for seeds in (2, 3, 5) * 20:
        spread = rng.choice([0.001, 0.01, 0.1], 2)
        table = rng.normal(0, spread[0], (seeds, 1)) + rng.normal(0, spread[1], (1, 40))
        losses, zero = table.mean(axis=1), np.zeros((seeds, 40))
        gap = paired_gap(finals(losses, table), finals(np.zeros(seeds), zero))
        alone = paired_gap(finals(losses), finals(np.zeros(seeds)))
        assert gap.low <= alone.low
        assert gap.high >= alone.high


def test_the_two_way_interval_covers_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        table = rng.normal(0, 0.01, (3, 1)) + rng.normal(0, 0.05, (1, 60))
        table = table + rng.normal(0, 0.05, (3, 60))
        gap = paired_gap(finals(table.mean(axis=1), table), finals(np.zeros(3), np.zeros((3, 60))))
        hits += gap.low <= 0 <= gap.high
    assert 0.85 <= hits / 300 <= 0.99


def test_windows_of_another_number_fall_back_to_seeds():
    a = {0: Final(3.0, np.zeros(5)), 1: Final(3.1, np.zeros(5))}
    b = {0: Final(2.9, np.zeros(6)), 1: Final(3.1, np.zeros(6))}
    assert paired_gap(a, b) == paired_gap(finals([3.0, 3.1]), finals([2.9, 3.1]))


def test_a_pair_without_windows_does_not_narrow_the_interval():
    rng = np.random.default_rng(5)
    tables = 3 + rng.normal(0, 0.5, (2, 3, 40))
    a, b = (finals(table.mean(axis=1), table) for table in tables)
    whole = paired_gap(a, b)
    lacking = paired_gap(a | {2: Final(a[2].loss)}, b)
    assert (whole.n, lacking.n) == (3, 2)
    assert lacking.high - lacking.low > whole.high - whole.low
    assert lacking.means == pytest.approx((tables[0, :2].mean(), tables[1, :2].mean()))


def test_a_gap_of_unlike_runs_is_mixed():
    here, there = ("a card", "0123456"), ("another card", "0123456")
    reference = {1: Final(3.0, place=here)}
    assert paired_gap({1: Final(3.1, place=there)}, reference).mixed
    assert not paired_gap({1: Final(3.1, place=here)}, reference).mixed


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01, 0.02, "reproduced"),
        (-0.028, 0.028, "reproduced"),
        (0.029, 0.05, "not reproduced"),
        (-0.05, -0.03, "not reproduced"),
        (0.01, 0.03, "inconclusive"),
        (-0.03, 0.03, "inconclusive"),
        (None, None, "inconclusive"),
    ],
)
def test_parity_rule(low, high, verdict):
    assert st.parity(Gap(0.0, low, high, 1 if low is None else 3)) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.1, "reproduced"),
        (-0.1, -0.001, "not reproduced"),
        (-0.1, 0.1, "inconclusive"),
        (None, None, "inconclusive"),
    ],
)
def test_order_rule(low, high, verdict):
    assert st.order(Gap(0.0, low, high, 3)) == verdict


@pytest.mark.parametrize(
    ("paper_gap", "low", "high", "verdict"),
    [
        (0.4, 0.2, 0.3, "reproduced"),
        (0.4, -0.01, 0.01, "not reproduced"),
        (0.4, 0.01, 0.06, "inconclusive"),
        (0.4, -0.4, -0.3, "not reproduced"),
        (-0.4, -0.4, -0.3, "reproduced"),
        (-0.4, 0.3, 0.4, "not reproduced"),
        (0.01, 0.0, 0.02, "reproduced"),
    ],
)
def test_a_printed_cell_is_judged_on_its_own_side(paper_gap, low, high, verdict):
    assert st.same_side(Gap(0.0, low, high, 3), paper_gap) == verdict


@pytest.mark.parametrize(
    ("items", "verdict"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "not run"], "inconclusive"),
        (["not reproduced", "not run"], "not reproduced"),
        (["reproduced", "inconclusive"], "inconclusive"),
        (["reproduced", "not reproduced", "inconclusive"], "not reproduced"),
        (["not run", "not run"], "not run"),
        (["reproduced", "another model"], "inconclusive"),
        (["not run", "another model"], "inconclusive"),
        ([], "not run"),
    ],
)
def test_one_refuted_item_refutes_the_claim(items, verdict):
    assert st.overall(items) == verdict


def test_a_claim_that_is_not_universal_stands_on_what_was_run():
    assert st.overall(["reproduced", "not run"], universal=False) == "reproduced"


def test_best_rate_flags_the_edges_and_never_takes_a_diverged_run():
    assert best_rate({1e-4: 4.0, 2e-4: 3.0, 4e-4: 3.5}) == (2e-4, None)
    assert best_rate({1e-4: 3.0, 2e-4: 3.1}) == (1e-4, "lowest")
    assert best_rate({1e-4: 3.2, 2e-4: 3.1}) == (2e-4, "highest")
    assert best_rate({1e-4: 3.2, 2e-4: float("inf")}) == (1e-4, "lowest")
    assert best_rate({1e-4: 3.2}) == (1e-4, "only")
    assert best_rate({1e-4: float("nan")}) is None


def test_first_step_at_or_below():
    steps, losses = np.array([10, 20, 30, 40]), np.array([5.0, 4.0, np.nan, 3.0])
    assert first_step_at_or_below(steps, losses, 4.0) == 20
    assert first_step_at_or_below(steps, losses, 3.5) == 40
    assert first_step_at_or_below(steps, losses, 1.0) is None


def test_slope_of_the_papers_own_gaps_is_above_zero():
    """The printed gaps grow with size: −0.001, 0.006, 0.011, 0.019, 0.022, 0.028."""
    size = np.log10([124e6, 354e6, 596e6, 1.72e9, 4.02e9, 8.19e9])
    trend = st.slope(size, np.array([-0.001, 0.006, 0.011, 0.019, 0.022, 0.028]))
    assert trend.low > 0
