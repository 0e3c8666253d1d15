"""Guards how a run ends that cannot go on: in one sentence, with a non-zero code, its work kept.

Each failure is followed by the same command without it, which must end where an undisturbed run
ends, bit for bit.
"""

import errno
import hashlib
import os
import pickle
import resource
import shutil
import signal
import sys
from functools import partial

import pytest
import torch
from reliability_kit import (
    Harness,
    at_checkpoint,
    checkpoints,
    differences,
    fill_disk,
    kill,
    left,
    newest_state,
    rows,
    summary,
)

RUN = ("optimizer=powerstep", "model.dropout=0.1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, text):
    """What the undisturbed run leaves."""
    harness = Harness(tmp_path_factory.mktemp("whole"), text)
    assert harness(*RUN) == 0, harness.said
    return left(harness.run())


def the_error(harness) -> str:
    """The one sentence that the process ended with; nothing else may look like trouble."""
    assert "Traceback" not in harness.said
    (line,) = [line for line in harness.said.splitlines() if line.startswith("error: ")]
    return line


def assert_goes_on_to(harness, whole) -> None:
    assert harness(*RUN) == 0, harness.said
    assert not differences(whole, left(harness.run()))


def little_room(size: int, pipe=None) -> None:
    """No file may grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def no_room_from_step(step: int, pipe) -> None:
    """Neither the log may grow any more, nor the larger files be replaced."""
    from powerstep_repro.runs import record

    log = record.Recorder.log

    def log_until_full(self, row):
        if row["step"] == step:
            little_room((self.run_dir / "metrics.jsonl").stat().st_size)
        log(self, row)

    record.Recorder.log = log_until_full


def test_no_room_for_a_checkpoint(harness, whole):
    accident = partial(at_checkpoint, "written", 2, fill_disk)
    assert harness(*RUN, accident=accident) == 1
    assert "checkpoint of step 6 could not be written" in the_error(harness)
    assert "No space left on device" in the_error(harness)
    assert list(checkpoints(harness.run())) == [3]
    assert summary(harness.run())["status"] == "failed"
    assert_goes_on_to(harness, whole)


@pytest.mark.parametrize("accident", [partial(no_room_from_step, 5), partial(little_room, 300)])
def test_no_room_for_the_log_or_for_anything(harness, whole, accident):
    assert harness(*RUN, accident=accident) == 1
    assert os.strerror(errno.EFBIG) in the_error(harness)
    assert_goes_on_to(harness, whole)


def hungry(limit: int, pipe) -> None:
    """A device without memory for more than so many sequences at a time."""
    from nanogpt.model import GPT

    forward = GPT.forward

    def forward_or_not(self, tokens, targets=None, passes=1):
        if len(tokens) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, tokens, targets, passes)

    GPT.forward = forward_or_not


def test_out_of_memory_names_the_knobs_and_a_smaller_micro_batch_goes_on(harness):
    """The micro-batch is no part of a run's identity: it is the same run that goes on."""
    assert harness(*RUN, accident=partial(hungry, 2)) == 1
    for word in ("out of memory on cpu", "micro_batch 4", "precision fp32", "smaller micro_batch"):
        assert word in the_error(harness)
    assert summary(harness.run())["status"] == "failed"
    assert "out of memory" in summary(harness.run())["error"]
    assert harness(*RUN, "micro_batch=2", accident=partial(hungry, 2)) == 0, harness.said
    assert summary(harness.run())["status"] == "finished"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["context=999999999"], ["too few for one window of context 999999999"]),
        # More than an address can tell: no machine so much as tries.
        (["model.vocab_size=1e9", "model.hidden=1e9"], ["out of memory on cpu", "precision fp32"]),
    ],
)
def test_what_fits_nowhere_is_refused_before_it_is_built(harness, overrides, words):
    assert harness(*RUN, *overrides) == 1
    for word in words:
        assert word in the_error(harness)


def without(package: str, pipe) -> None:
    """A machine on which a package is not installed."""
    sys.modules[package] = None


@pytest.mark.parametrize(
    ("override", "accident", "words"),
    [
        ("logger=wandb", partial(without, "wandb"), "logger=wandb needs wandb, which is not"),
        ("seed=1", partial(without, "torch"), "training needs torch, which is not installed: "),
        ("model=qwen3_0_6b", partial(without, "transformers"), "qwen3_0_6b needs transformers"),
        ("device=mps", None, "device is 'mps', but torch finds no MPS device"),
    ],
)
@pytest.mark.skipif(torch.backends.mps.is_available(), reason="needs a machine without MPS")
def test_what_is_not_there_is_refused_before_there_is_a_run(harness, override, accident, words):
    assert harness(override, accident=accident) == 1
    assert words in the_error(harness)
    assert not harness.runs()


def interrupted_while(where: str, number: int, pipe) -> None:
    """A signal that comes when the loop, which takes signals politely, does not run."""
    import powerstep_repro.data
    from powerstep_repro.runs import record

    module, name = {
        "opening the data": (powerstep_repro.data, "resolve"),
        "finishing": (record, "write_parquet"),
    }[where]
    call = getattr(module, name)

    def call_and_signal(*arguments):
        os.kill(os.getpid(), number)
        return call(*arguments)

    setattr(module, name, call_and_signal)


@pytest.mark.parametrize("where", ["opening the data", "finishing"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_outside_the_loop_is_no_traceback_either(harness, whole, where, number, code):
    ended = harness(*RUN, accident=partial(interrupted_while, where, number))
    assert ended in (code, -number), harness.said
    assert "Traceback" not in harness.said
    for run in harness.runs():
        assert summary(run)["status"] in ("running", "interrupted")
    assert_goes_on_to(harness, whole)


def test_a_checkpoint_of_another_run_is_refused_with_the_keys(harness):
    assert harness(*RUN) == 0
    assert harness(*RUN, "seed=2", "optimizer.beta=0.3") == 0
    one, other = harness.runs()
    shutil.rmtree(other / "checkpoints")
    shutil.copytree(one / "checkpoints", other / "checkpoints")
    (other / "summary.json").unlink()
    which = ("seed=2", "optimizer.beta=0.3") if "-s2-" in other.name else ()
    assert harness(*RUN, *which) == 1
    error = the_error(harness)
    assert "belongs to another configuration" in error
    assert "seed (" in error
    assert "optimizer.beta (" in error
    assert "model" not in error
    assert summary(other)["status"] == "failed"


def older_format(pipe) -> None:
    from nanogpt import checkpoint

    checkpoint.FORMAT -= 1


def test_a_checkpoint_of_an_older_version_is_refused(harness):
    assert harness(*RUN, accident=older_format) == 0
    (harness.run() / "summary.json").unlink()
    assert harness(*RUN) == 1
    assert "has format 0; this version reads 1" in the_error(harness)


def without_a_key(pipe) -> None:
    """A version whose configs did not have a key yet."""
    from powerstep_repro import train

    view = train.identity_view
    train.identity_view = lambda config: {
        key: value for key, value in view(config).items() if key != "weight_decay_on"
    }


def test_a_checkpoint_of_an_older_versions_config_is_refused_with_the_keys(harness):
    assert harness(*RUN, accident=without_a_key) == 0
    (harness.run() / "summary.json").unlink()
    assert harness(*RUN) == 1
    differing = "weight_decay_on ('absent' there, 'matrices' here)"
    assert the_error(harness).endswith(f"belongs to another configuration: {differing}")


def renamed_parameter(pipe) -> None:
    """A version of the model that calls a layer by another name."""
    from nanogpt.model import GPT

    make = GPT.__init__

    def make_and_rename(self, *arguments):
        make(self, *arguments)
        self.final = self._modules.pop("ln_f")

    GPT.__init__ = make_and_rename
    GPT.ln_f = property(lambda self: self.final)


def test_a_checkpoint_of_another_versions_model_is_refused_with_the_names(harness):
    accident = partial(at_checkpoint, "renamed", 1, kill)
    assert harness(*RUN, accident=accident) == -signal.SIGKILL
    assert harness(*RUN, accident=renamed_parameter) == 1
    assert "is of another model: it differs in ln_f.weight, final.weight" in the_error(harness)


class Malice:
    """What a pickle may hold: a call that unpickling makes."""

    def __reduce__(self):
        return os.mkdir, ("was-unpickled",)


@pytest.mark.parametrize("content", [pickle.dumps(Malice()), b"no checkpoint", pickle.dumps([])])
def test_a_strangers_checkpoint_is_refused_and_never_run(harness, content):
    accident = partial(at_checkpoint, "renamed", 1, kill)
    assert harness(*RUN, accident=accident) == -signal.SIGKILL
    name = f"step-00000005-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    (harness.run() / "checkpoints" / name).write_bytes(content)
    assert harness(*RUN) == 1
    assert f"{name} is none of this project" in the_error(harness)
    assert not (harness.folder / "was-unpickled").exists()


def test_a_damaged_newest_checkpoint_costs_steps_but_no_bit(harness, whole):
    assert harness(*RUN) == 0
    newest = checkpoints(harness.run())[12]
    newest.write_bytes(newest.read_bytes()[:-100])
    (harness.run() / "summary.json").unlink()
    assert harness(*RUN) == 0
    assert f"{newest.name} is passed over" in harness.said
    assert "resuming after step 9" in harness.said
    assert not differences(whole, left(harness.run()))


@pytest.mark.parametrize(("kept", "after"), [(None, 0), (7, 7)])
def test_a_log_that_lacks_rows_is_refused_and_what_the_sentence_says_goes_on(
    harness, whole, kept, after
):
    """A deleted log, and one that lost its end: the run would go on with a hole for ever."""
    assert harness(*RUN, accident=partial(at_checkpoint, "renamed", 3, kill)) == -signal.SIGKILL
    log = harness.run() / "metrics.jsonl"
    text = log.read_text()
    log.unlink()
    if kept:
        log.write_text("".join(text.splitlines(keepends=True)[:kept]))
    assert harness(*RUN) == 1
    assert f"delete the checkpoints after step {after} in " in the_error(harness)
    assert summary(harness.run())["status"] == "failed"
    for step, path in checkpoints(harness.run()).items():
        if step > after:
            path.unlink()
    assert_goes_on_to(harness, whole)


def folder_deleted_after_step(step: int, pipe) -> None:
    """Somebody tidies up; the next checkpoint makes the folder again."""
    from powerstep_repro.runs.record import Recorder

    log = Recorder.log

    def log_and_delete(self, row):
        log(self, row)
        if row["step"] == step:
            shutil.rmtree(self.run_dir)

    Recorder.log = log_and_delete


def test_a_run_whose_folder_is_deleted_under_it_fails(harness, whole):
    assert harness(*RUN, "eval_interval=100", accident=partial(folder_deleted_after_step, 5)) == 1
    assert "metrics.jsonl was removed or replaced while the run wrote to it" in the_error(harness)
    assert not (harness.run() / "summary.json").exists()
    shutil.rmtree(harness.run())
    assert_goes_on_to(harness, whole)


def test_looking_on_changes_no_bit(harness, whole):
    """Neither evaluation, log and checkpoints at other intervals nor W&B move a weight."""
    often = ("eval_interval=1", "eval_windows=2", "log_interval=7", "checkpoint_interval=1")
    wandb = ("logger=wandb", "logger.mode=offline", "keep_checkpoints=1", "results_dir=often")
    seldom = ("eval_interval=100", "log_interval=100", "checkpoint_interval=100")
    assert harness.start((*RUN, *often, *wandb), (*RUN, *seldom)).end() == 0, harness.said
    assert list(harness.folder.glob("wandb/offline-run-*"))
    assert [row["step"] for row in rows(harness.run())] == [1, 12]
    for results in ("often", "results"):
        state = newest_state(harness.run(results))["state"]
        for part in ("model", "optimizer", "train_loss"):
            assert not differences(whole["checkpoint"]["state"][part], state[part], part)
