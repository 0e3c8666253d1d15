"""Where kernels run, and signals as from a terminal.

Kernels run on the GPU if there is one, else on the CPU under Triton's interpreter.
"""

import os
import signal
import sys

import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError("set TRITON_INTERPRET=1: triton was imported before tests/fused")
    os.environ["TRITON_INTERPRET"] = "1"

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
    import numpy as np

    with np.errstate(all="ignore"):
        yield
