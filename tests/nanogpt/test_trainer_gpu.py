"""Guards what only a CUDA device can show: exact resume of compiled training with deterministic
kernels, and that a step makes the host wait once.
"""

import os
import signal
import warnings

import pytest
import torch
from trainer_kit import Run, assert_identical

from nanogpt.runtime import Runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("compile", [False, True])
def test_resume_is_exact_with_deterministic_kernels(tmp_path, data, compile):
    def start(folder, **more):
        runtime = Runtime("cuda", "amp_bf16", deterministic=True, compile=compile)
        return Run(tmp_path / folder, data, runtime=runtime, micro_batch=2, eval_interval=4, **more)

    straight = start("straight")
    stopped = start("stopped", progress=_signal_at_step_4)
    assert stopped.result.status == "interrupted"
    resumed = start("stopped")
    assert resumed.result == straight.result
    assert_identical(resumed.left(), straight.left())


def _signal_at_step_4(row, steps):
    if row["step"] == 4:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_fused"])
def test_no_operation_of_a_step_waits_for_the_device(tmp_path, data, optimizer):
    """The host waits for the copy of the outcome, and that is all."""

    def progress(row, steps):
        torch.cuda.set_sync_debug_mode("warn" if 4 <= row["step"] < 8 else "default")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cuda = Runtime("cuda")
        Run(tmp_path, data, runtime=cuda, optimizer=optimizer, progress=progress, note=False)
    assert not [w for w in caught if "synchronizing CUDA operation" in str(w.message)]


def test_reading_numbers_waits_for_nothing_enqueued_later():
    with Runtime("cuda") as cuda:
        outcome = cuda.to_host(torch.arange(3.0, device="cuda") / 2)
        torch.cuda._sleep(10**9)  # cycles: half a second
        later = torch.cuda.Event()
        later.record()
        assert outcome() == [0.0, 0.5, 1.0]
        assert not later.query()
        torch.cuda.synchronize()
