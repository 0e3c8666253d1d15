"""The kernel compiles for a GPU, on machines without one, to what its layout was chosen for.

Guards: features that only the interpreter has; vector accesses lost to a missing alignment; layouts
that pass every element through shared memory; registers spilled; subnormals flushed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("compile_for_gpu.py")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("triton"))
    path = os.pathsep.join([str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache, "PYTHONPATH": path
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


def test_no_spills_and_no_flushing(report):
    for name, found in report.items():
        assert found["cubin"] > 0, name
        assert found["local"] == 0, name
        assert found["flushing_fma"] == 0, name


def test_accesses_are_vectors(report):
    """Four elements an access for each fp32 or bf16 operand; four codes are one 32-bit word."""
    for name, loaded, stored in (
        ("powerstep", 3, 2),
        ("int8 dynamic", 2, 1),
        ("bfloat16 linear", 2, 1),
        ("adamw dynamic", 2, 1),
    ):
        found = report[name]
        assert found["vector_loads"] == loaded * found["vectors_a_thread"], name
        assert found["vector_stores"] == stored * found["vectors_a_thread"], name


def test_layouts_agree(report):
    """fp32 state needs no exchange between threads; codes only that of a scale a block."""
    assert report["powerstep"]["barriers"] == 0
    assert report["int8 dynamic"]["barriers"] <= 4
    assert report["adamw dynamic"]["barriers"] <= 13  # 12 from Triton 3.9 on
