"""Guards exact resume on a CUDA card, compiled and in bf16: a run killed from outside and started
again leaves what an undisturbed one leaves, bit for bit, with a warm compiler cache and a cold one.
"""

import os
import signal
from functools import partial

import pytest
import torch
from reliability_kit import differences, hold, left

CARD = ("device=cuda", "precision=amp_bf16", "compile=true", "deterministic=true")
# GPT-2 Small's heads and a quarter of its width.
RUN = (
    *("model.layers=2", "model.hidden=192", "model.heads=3", "context=128", "batch=8"),
    *("micro_batch=4", "model.dropout=0.1", "steps=20", "eval_interval=10"),
    *("checkpoint_interval=5", "log_interval=1"),
)


def cold_cache(folder, pipe) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


def killed_and_resumed(harness, run, accident=None) -> list[str]:
    """Train straight through, and once more with a kill; say in what the two runs differ."""
    assert harness(*run, "results_dir=straight") == 0, harness.said
    child = harness.start((*run, "results_dir=killed"), accident=partial(hold, 12, 14))
    assert child.hear() == 12, harness.said
    child.process.kill()
    assert child.end() == -signal.SIGKILL
    assert harness(*run, "results_dir=killed", accident=accident) == 0, harness.said
    assert "resuming after step 10" in harness.said
    return differences(left(harness.run("straight")), left(harness.run("killed")))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("optimizer", ["adamw", "powerstep_int8"])
@pytest.mark.parametrize("cold", [False, True])
def test_killed_on_a_card_and_compiled_again(harness, tmp_path, optimizer, cold):
    accident = partial(cold_cache, tmp_path / "cold") if cold else None
    assert not killed_and_resumed(harness, (*RUN, *CARD, f"optimizer={optimizer}"), accident)


@pytest.mark.slow
def test_the_same_without_a_card(harness):
    """Not compiled: what the test above does is right where no card shows it."""
    assert not killed_and_resumed(harness, (*RUN, "device=cpu", "optimizer=powerstep_int8"))
