"""Guards what is called a hole in a log, a copy of it, and a final loss that cannot be."""

import numpy as np
import pandas as pd
import pytest

from powerstep_repro.runs.checks import contradiction, fingerprint, first_hole, windows_agree


@pytest.mark.parametrize(
    ("steps", "between", "hole"),
    [
        ([], 1, None),
        ([1, 2, 3, 4], 1, None),
        ([1, 2, 6, 7, 8], 1, (2, 6)),
        ([5, 6, 7], 1, (0, 5)),  # the start is missing
        ([50, 100, 150], 1, None),  # sparser than configured throughout
        ([50, 100, 150, 160], 50, None),  # the last step is logged whenever it comes
        ([1, 50, 100, 150], 50, None),
        ([50, 100, 250, 300], None, (100, 250)),
        ([1500], 1, None),
    ],
)
def test_a_hole_is_a_distance_that_is_not_the_logs_own(steps, between, hole):
    assert first_hole(np.array(steps, dtype=np.int64), between) == hole


def test_logs_are_equal_only_in_every_row():
    log = pd.DataFrame({"step": [1, 2, 3], "train_loss": [5.0, np.nan, 4.0]})
    assert fingerprint(log) == fingerprint(log.copy())
    assert fingerprint(log) != fingerprint(log.iloc[:2])
    assert fingerprint(log) != fingerprint(log.assign(train_loss=[5.0, np.nan, 4.0000001]))
    assert fingerprint(log.iloc[:1]) is None  # one row is no evidence of a copy


def test_a_final_loss_is_compared_with_the_logs_last_step_alone():
    log = pd.DataFrame({"step": [50, 100], "val_loss": [4.0, 3.0]})
    assert contradiction(3.0, log, 100) == ""
    assert contradiction(3.00001, log, 100) == ""  # a mirror rounds
    assert "its log of 3.0000" in contradiction(2.9, log, 100)
    assert contradiction(2.9, log, 200) == ""  # the log is cut: what it ends with is older
    assert contradiction(3.0, log.assign(val_loss=np.nan), 100) == ""


def test_windows_that_do_not_average_to_the_final_loss_are_of_another_evaluation():
    windows = np.array([3.0, 4.0])
    assert windows_agree(windows, 3.5)
    assert windows_agree(windows, 3.50005)  # a mirror rounds
    assert not windows_agree(windows, 3.5002)
    assert not windows_agree(np.array([3.0, np.nan]), 3.5)
    assert not windows_agree(windows, np.nan)
