"""The trainer's kernels compile for a GPU, on machines without one, to vector accesses.

Guards: features that only the interpreter has; scalar accesses; spilled registers; arithmetic in
64 bits, which a float argument brings into a kernel of a compiled graph.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_trainer_kernels.py")


@pytest.mark.slow
def test_they_compile_to_vector_accesses(tmp_path):
    path = os.pathsep.join([str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": path
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    report = json.loads(run.stdout)
    assert set(report) == {
        "cross_entropy",
        "add_norm",
        "add_norm_backward",
        "gelu",
        "product_gelu_backward",
    }
    for name, found in report.items():
        assert found["cubin"] > 0, name
        assert found["local"] == 0, name
        assert found["doubles"] == 0, name
        assert found["loads"] >= 2, name
        assert found["stores"] >= 1, name
