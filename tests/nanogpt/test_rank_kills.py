"""Guards two ranks against the SIGKILL of one, and the sharing out of the evaluation."""

import json
import os
import signal

import pytest
from trainer_kit import STEPS, LogRecorder, assert_identical, ranks

from nanogpt.checkpoint import CheckpointStore
from nanogpt.model import GPT

COMMON = {"eval_interval": 4, "checkpoint_interval": 3, "micro_batch": 1}


def left(folder):
    """The log, the last evaluation, and the checkpoint with weights and optimizer state."""
    step, state = CheckpointStore(folder / "checkpoints", {"dropout": 0.1}).load()
    assert step == STEPS
    windows = json.loads((folder / "log.windows").read_text())
    return {"rows": LogRecorder(folder / "log.jsonl").rows(), "windows": windows, "state": state}


@pytest.fixture(scope="module")
def straight(tmp_path_factory, data_folder):
    folder = tmp_path_factory.mktemp("straight")
    ranks(folder, data_folder, **COMMON)
    return left(folder)


class SecondDies(GPT):
    """On rank 1, in the first micro-batch of step 5."""

    passes = 0

    def forward(self, tokens, targets=None, passes=1):
        self.passes += targets is not None
        if self.passes == 9 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(tokens, targets, passes)


@pytest.mark.parametrize(
    ("dies", "accident"),
    [(0, {"stop_at": ("writing", 2)}), (1, {"model_class": SecondDies})],
    ids=["rank 0, in a checkpoint", "rank 1, in a step"],
)
def test_a_killed_rank_ends_all_and_resume_is_exact(
    tmp_path, data_folder, straight, dies, accident
):
    """With dropout and accumulation; optimizer state and all."""
    outcomes = ranks(tmp_path, data_folder, **accident, **COMMON)
    assert outcomes[dies] is None, "it was not killed"
    assert isinstance(outcomes[1 - dies], Exception), "the other one went on"
    (kept,) = (tmp_path / "checkpoints").glob("step-*.pt")
    assert kept.name.startswith("step-00000003-")
    ranks(tmp_path, data_folder, **COMMON)
    assert_identical(left(tmp_path), straight)


class SureOfZero(GPT):
    """In evaluation it bets on token 0, twice as high on rank 1: a loss of about 10 or 20."""

    def forward(self, tokens, targets=None, passes=1):
        out = super().forward(tokens, targets, passes)
        if not self.training:
            out.logits.zero_()[..., 0] = 10.0 * (1 + int(os.environ["RANK"]))
        return out


def test_each_rank_evaluates_its_half_of_the_windows(tmp_path, data_folder):
    for result, _, _ in ranks(tmp_path, data_folder, model_class=SureOfZero, **COMMON):
        assert result.status == "finished"
    _, losses = json.loads((tmp_path / "log.windows").read_text())
    half = len(losses) // 2
    assert [loss > 15 for loss in losses] == [False] * half + [True] * (len(losses) - half)
