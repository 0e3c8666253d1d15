"""Guards: under torchrun the ranks make one run, equal to that of one process."""

import os
import subprocess
import sys

import pytest
from train_kit import SMALL, rows, summary


def torchrun(command, *overrides):
    arguments = [*SMALL, "data=text", f"data.path={command.data}", *overrides]
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", "-m", "powerstep_repro.train", *arguments),
        ],
        cwd=command.folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_two_ranks_make_one_run_with_the_numbers_of_one_process(command, tmp_path, text):
    ended = torchrun(command, "micro_batch=1")
    assert ended.returncode == 0, ended.stderr
    assert summary(command.run)["world_size"] == 2
    names = {path.name for path in command.folder.iterdir()}
    assert names == {"results", "data"}
    (tmp_path / "alone").mkdir()
    alone = type(command)(tmp_path / "alone", text)
    assert alone() == 0
    assert alone.run.name == command.run.name
    for ours, theirs in zip(rows(command.run), rows(alone.run), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert "finished at step 12" in ended.stdout
    assert ended.stdout.count("finished") == 1
