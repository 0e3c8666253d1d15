"""Fixtures of the data tests: a corpus of documents, and the prepare command in a warm process."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from nanogpt.data import TokenData

# Runs the command's own main for each line of arguments, so that a dozen cases pay for the
# imports of datasets and tiktoken once.
SERVER = """
import contextlib, io, json, sys
from powerstep_repro.errors import UserError
from powerstep_repro.prepare import main

for line in sys.stdin:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(json.loads(line))
        except UserError as error:
            code = str(error)
        except SystemExit as error:
            code = error.code
        except Exception as error:
            code = [repr(error)]  # no one sentence
    print(json.dumps([code, out.getvalue()]), flush=True)
"""


@pytest.fixture(scope="session")
def offline(tmp_path_factory):
    """The environment of a machine without a network and without any cache."""
    home = tmp_path_factory.mktemp("huggingface")
    settings = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    # The loader looks for torch's workers when it streams; without, it starts two seconds sooner.
    return {**os.environ, **settings, "USE_TORCH": "0"}


@pytest.fixture(scope="session")
def command(offline):
    """Call ``prepare`` with arguments; returns its exit code or its error, and its output."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=offline,
        text=True,
    )

    def call(*arguments):
        process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield call
    process.stdin.close()
    process.wait(timeout=60)


@pytest.fixture(scope="session")
def documents():
    """Texts of many lengths, the empty one and some without ASCII among them."""
    random = np.random.default_rng(7)
    words = ["the", "of", "step", "μ", "sign", "gradient", "重み", "memory", "naïve", "power\n"]
    texts = [" ".join(random.choice(words, random.integers(0, 60))) for _ in range(200)]
    return [*texts, "", "the end <|endoftext|> spelled out", "\x00\u2028 odd \U0001f600"]


@pytest.fixture(scope="session")
def built(command):
    """Prepare and return the data set; arguments as for ``command``."""

    def call(data_dir, *arguments):
        code, output = command(*arguments, f"data_dir={data_dir}")
        assert code == 0, (code, output)
        (folder,) = (path for path in data_dir.iterdir() if path.name[0] != ".")
        return TokenData.open(folder)

    return call
