"""Guards exact resume against SIGKILL from outside, inside a checkpoint's writing, and signals
that insist: weights, optimizer state and log equal those of the undisturbed run, bit for bit.
"""

import json
import signal

import numpy as np
import pytest
from trainer_kit import STEPS, Process, Run, assert_identical

COMMON = {"checkpoint_interval": 3, "eval_interval": 4, "micro_batch": 2, "keep": 2}


@pytest.fixture(scope="module")
def straight(tmp_path_factory, data):
    """The run that nothing disturbs, by optimizer; dropout is on."""
    runs = {
        name: Run(tmp_path_factory.mktemp(name), data, optimizer=name, **COMMON)
        for name in ("adamw", "sgd")
    }
    return {name: run.left() for name, run in runs.items()}


def assert_goes_on_to(folder, data, left, optimizer):
    assert_identical(Run(folder, data, optimizer=optimizer, **COMMON).left(), left[optimizer])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_killed_from_outside_again_and_again(tmp_path, data, data_folder, straight, optimizer):
    """Each start is killed a random number of steps further on, until one ends by itself."""
    rng = np.random.default_rng()
    kills = []
    for _ in range(STEPS):
        process = Process(tmp_path, data_folder, tell=True, optimizer=optimizer, **COMMON)
        patience = rng.integers(3, 8)
        for taken, step in enumerate(process, start=1):
            if taken == patience:
                process.process.kill()
                kills.append(int(step))
                break
        if process.end() is not None:
            break
    assert kills, "nothing was killed"
    print(f"killed after steps {kills}")
    assert_goes_on_to(tmp_path, data, straight, optimizer)


@pytest.mark.parametrize(
    ("stop_at", "newest"),
    [(("writing", 1), None), (("writing", 2), 3), (("written", 2), 3), (("renamed", 2), 6)],
)
def test_killed_inside_a_checkpoints_writing(
    tmp_path, data, data_folder, straight, stop_at, newest
):
    process = Process(tmp_path, data_folder, stop_at=stop_at, **COMMON)
    assert process.end() is None
    assert process.process.exitcode == -signal.SIGKILL
    found = sorted((tmp_path / "checkpoints").glob("step-*-*.pt"))
    assert (int(found[-1].name[5:13]) if found else None) == newest
    assert_goes_on_to(tmp_path, data, straight, "adamw")
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))


def test_a_log_left_with_rows_beyond_the_checkpoint_is_cut_back(tmp_path, data_folder):
    """The log of a killed run holds each step once after the resume."""
    Process(tmp_path, data_folder, stop_at=("writing", 2), **COMMON).end()
    rows = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(rows) == 6  # the checkpoint of step 6 was being written; that of step 3 is whole
    Process(tmp_path, data_folder, **COMMON).end()
    rows = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == list(range(1, STEPS + 1))


def test_a_second_signal_stops_at_once(tmp_path, data, data_folder, straight):
    process = Process(tmp_path, data_folder, event=("insist", 9), **COMMON)  # in the fifth step
    assert process.end() is None
    assert process.process.exitcode == -signal.SIGTERM
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 4
    assert_goes_on_to(tmp_path, data, straight, "adamw")
