import math

import pytest

from powerstep_repro.config import compose, run_dir, with_data
from powerstep_repro.runs import Recorder


def row(step, **fields):
    return {"step": step, "tokens": 1024 * step, "train_loss": 5.0 - 0.01 * step, **fields}


@pytest.fixture
def config(tmp_path):
    """Make a run's config, as the train command would record it."""

    def make(*overrides, data_hash="d" * 16):
        overrides = [f"results_dir={tmp_path}", *overrides]
        return with_data(compose(overrides), data_hash, "builtin")

    return make


@pytest.fixture
def record(config):
    """Leave a whole run directory behind; returns its name."""

    def make(*overrides, rows=None, status="finished", data_hash="d" * 16, **summary):
        made = config(*overrides, data_hash=data_hash)
        if rows is None:  # no two seeds have the same losses
            rows = [row(step, train_loss=5.0 - 0.01 * step - made["seed"]) for step in range(1, 6)]
        with Recorder(run_dir(made), made) as recorder:
            recorder.resume(0)
            for each in rows:
                recorder.log(each)
            recorder.windows(len(rows), [3.0, math.nan, 2.5])
            recorder.finish(status, steps=len(rows), **summary)
            return recorder.run_dir.name

    return make
