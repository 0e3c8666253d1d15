"""Where kernels run, and signals as from a terminal.

Kernels run on the GPU if there is one, else on the CPU under Triton's interpreter.
"""

import os
import signal
import sys

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError("set TRITON_INTERPRET=1: triton was imported before tests/fused")
    os.environ["TRITON_INTERPRET"] = "1"


def _round_multiply_adds_once():
    """Make ``tl.fma`` under Triton's interpreter what it is on a GPU, and in it from 3.9 on.

    Before, it rounds the product and then the sum. In float64 the product of two float32 numbers
    is exact. To be deleted once no torch that is supported brings a Triton before 3.9.
    """
    try:
        import triton
        from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
    except ImportError:  # Triton is for Linux alone
        return
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
        return

    def create_fma(self, x, y, z):
        total = x.data.astype(np.float64) * y.data + z.data
        return TensorHandle(total.astype(z.data.dtype), z.dtype.scalar)

    InterpreterBuilder.create_fma = create_fma


_round_multiply_adds_once()

# A shell without job control starts ``make test &`` with SIGINT ignored, and every process that a
# test starts and interrupts would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(autouse=True)
def _quiet_interpreter():
    """The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN."""
    with np.errstate(all="ignore"):
        yield
