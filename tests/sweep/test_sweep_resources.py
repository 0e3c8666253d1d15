"""Guards how a machine is split among workers: GPUs handed out once, cores shared out whole."""

import subprocess

import pytest

from powerstep_repro.errors import UserError
from powerstep_repro.sweep.resources import make_workers, visible_gpus


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("0,1,3", ("0", "1", "3")),
        ("GPU-a, 7", ("GPU-a", "7")),
        ("", ()),
        ("2,-1,3", ("2",)),
    ],
)
def test_cuda_visible_devices_is_all_there_is(value, gpus):
    """As in CUDA, where a negative number hides the rest."""
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}) == gpus


def test_without_the_variable_the_driver_is_asked(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0\\n1\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert visible_gpus({}) == ("0", "1")
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert visible_gpus({}) == ()
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    monkeypatch.setenv("PATH", "/nowhere")
    assert visible_gpus({}) == ()


def test_gpus_are_handed_out_once_each():
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6,7,8"}
    workers = make_workers(30, gpus_per_run=2, environ=environ, cores=8)
    assert [worker.gpus for worker in workers] == [("4", "5"), ("6", "7")]
    assert [worker.threads for worker in workers] == [2, 2]
    assert workers[1].environment({"A": "b"}) == {
        "A": "b",
        "CUDA_VISIBLE_DEVICES": "6,7",
        "OMP_NUM_THREADS": "2",
    }
    assert len(make_workers(30, environ=environ, cores=8)) == 5
    assert len(make_workers(3, environ=environ, cores=8)) == 3, "no more workers than runs"


def test_asking_for_more_gpus_than_there_are_is_refused():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(UserError, match="but 2 GPUs can be used here: it must be from 1 to 2"):
        make_workers(1, gpus_per_run=4, environ=environ)
    with pytest.raises(UserError, match=r"--gpus-per-run is 2, but 0 GPUs .*: it must be 1$"):
        make_workers(1, gpus_per_run=2, use_gpus=False)
    with pytest.raises(UserError, match="at most 2 workers"):
        make_workers(5, workers=3, environ=environ)


@pytest.mark.parametrize(("cores", "runs"), [(1, 3), (2, 1), (8, 3), (12, 30)])
def test_on_cpu_workers_times_threads_is_the_cores(cores, runs):
    workers = make_workers(runs, environ={}, cores=cores)
    assert len(workers) <= runs
    assert cores - len(workers) < len(workers) * workers[0].threads <= cores
    assert "CUDA_VISIBLE_DEVICES" not in workers[0].environment({})


def test_threads_that_are_set_already_are_kept_and_counted_with():
    workers = make_workers(30, environ={"OMP_NUM_THREADS": "4"}, cores=8)
    assert len(workers) == 2
    assert workers[0].environment({"OMP_NUM_THREADS": "4"}) == {"OMP_NUM_THREADS": "4"}


def test_device_cpu_leaves_gpus_alone():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert all(not worker.gpus for worker in make_workers(4, use_gpus=False, environ=environ))
