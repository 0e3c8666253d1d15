"""Guards training on several processes (gloo): ranks stay equal, and equal one process."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from trainer_kit import STEPS, LogRecorder, Run, assert_identical, ranks

from nanogpt.errors import CheckpointError, UserError

COMMON = {"eval_interval": 4, "checkpoint_interval": 3, "dropout": 0.0}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data):
    return Run(tmp_path_factory.mktemp("alone"), data, **COMMON)


def rows(folder):
    return LogRecorder(folder / "log.jsonl").rows()


def assert_close_to(alone, folder):
    for here, there in zip(rows(folder), alone.recorder.rows(), strict=True):
        for key in there:
            tolerance = 1e-5 if key == "grad_norm" else 1e-6
            assert here[key] == pytest.approx(there[key], rel=tolerance), (here["step"], key)
    step, losses = json.loads((folder / "log.windows").read_text())
    expected = json.loads(alone.recorder.path.with_suffix(".windows").read_text())
    assert step == expected[0]
    assert losses == pytest.approx(expected[1], rel=1e-6)


@pytest.mark.parametrize(("world", "micro_batch"), [(2, None), (2, 1), (4, 1)])
def test_ranks_equal_each_other_and_one_process(tmp_path, data_folder, alone, world, micro_batch):
    outcomes = ranks(tmp_path, data_folder, world, micro_batch=micro_batch, **COMMON)
    results, digests, weights = zip(*outcomes, strict=True)
    # Gradients and weights after every step, the same on all ranks to the bit.
    assert len(digests[0]) == STEPS
    assert len(set(map(tuple, digests))) == 1
    assert len(set(results)) == 1
    assert results[0].status == "finished"
    assert_close_to(alone, tmp_path)
    for name, weight in weights[0].items():
        expected = alone.model.state_dict()[name].numpy()
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)


def test_resume_on_ranks_is_exact(tmp_path, data_folder):
    """With dropout, which differs between the ranks, and a stop in the midst of a step."""
    more = COMMON | {"dropout": 0.1, "micro_batch": 1}
    straight = ranks(tmp_path / "a", data_folder, **more)
    # The ninth pass is the first micro-batch of step 5; only rank 1 gets the signal.
    stopped = ranks(tmp_path / "b", data_folder, event=("sigterm", 9, 1), **more)
    for result, _, _ in stopped:
        assert (result.status, result.step, result.signal) == ("interrupted", 5, signal.SIGTERM)
    resumed = ranks(tmp_path / "b", data_folder, **more)
    for (a, _, weights_a), (b, digests, weights_b) in zip(straight, resumed, strict=True):
        assert a == b
        assert len(digests) == STEPS - 5
        assert all((weights_a[name] == weights_b[name]).all() for name in weights_a)
    assert_identical(rows(tmp_path / "a"), rows(tmp_path / "b"))


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_fused"])
def test_a_divergence_on_one_rank_stops_all(tmp_path, data_folder, optimizer):
    more = COMMON | {"optimizer": optimizer}
    outcomes = ranks(tmp_path, data_folder, event=("nan", 5, 1), **more)
    for result, digests, weights in outcomes:
        assert (result.status, result.step, result.diverged_at) == ("diverged", 4, 5)
        # A step under a flag is enqueued, and left out.
        assert len(digests) == (5 if optimizer == "adamw_fused" else 4)
        assert all(np.isfinite(weight).all() for weight in weights.values())
    assert math.isnan(rows(tmp_path)[-1]["train_loss"])


def test_a_full_disk_on_one_rank_stops_all(tmp_path, data_folder, alone):
    outcomes = ranks(tmp_path, data_folder, stop_at=("written", 2), stop_by="fill_disk", **COMMON)
    for error in outcomes:
        assert isinstance(error, CheckpointError)
        assert "step 6" in str(error)
        assert "No space left" in str(error)
    ranks(tmp_path, data_folder, **COMMON)
    assert_close_to(alone, tmp_path)


def test_a_batch_that_does_not_divide(tmp_path, data_folder):
    for error in ranks(tmp_path, data_folder, batch=5, **COMMON):
        assert isinstance(error, UserError)
        assert str(error) == "batch 5 does not divide among 2 ranks"


def test_under_torchrun(tmp_path, data_folder, alone):
    """The launcher itself, which sets the environment that the others here imitate."""
    here = Path(__file__).parent
    script = tmp_path / "main.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(here)!r})\n"
        "from pathlib import Path\n"
        "from trainer_kit import Run, TokenData\n"
        f"Run(Path({str(tmp_path)!r}), TokenData.open({str(data_folder)!r}), **{COMMON!r})\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(script)], env=environment, check=True, capture_output=True)
    assert_close_to(alone, tmp_path)
