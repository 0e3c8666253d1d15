"""Guards steps that the host enqueues before it knows whether loss and gradients are finite.

Their clip, flag and numbers; what a step that the device left out leaves behind; and that an
optimizer which does not honour the flag never gets one.
"""

import math

import pytest
import torch
from trainer_kit import OPTIMIZERS, STEPS, Run, assert_identical, disturbed

from nanogpt import loop
from nanogpt.model import GPT


@pytest.fixture
def flags(monkeypatch):
    """What each step of a fused AdamW was told: found_inf and grad_scale."""
    seen = []

    def watched(groups):
        optimizer = OPTIMIZERS["adamw_fused"](groups)
        optimizer.register_step_pre_hook(
            lambda o, *_: seen.append(
                (getattr(o, "found_inf", None), getattr(o, "grad_scale", None))
            )
        )
        return optimizer

    monkeypatch.setitem(OPTIMIZERS, "watched", watched)
    return seen


@pytest.fixture
def run(tmp_path, data, flags):
    """Makes runs whose steps are watched, each in a folder of its own unless one is named."""
    names = iter(range(100))
    return lambda folder=None, optimizer="watched", **kw: Run(
        tmp_path / str(folder or next(names)), data, optimizer=optimizer, **kw
    )


class LossOverflows(GPT):
    """In one training pass the loss is infinite, its gradient finite."""

    at, passes = 0, 0

    def forward(self, tokens, targets=None, passes=1):
        out = super().forward(tokens, targets, passes)
        self.passes += targets is not None
        return out._replace(loss=out.loss + math.inf) if self.passes == self.at else out


class NormOverflows(LossOverflows):
    """The other way round."""

    def forward(self, tokens, targets=None, passes=1):
        out = GPT.forward(self, tokens, targets, passes)
        self.passes += targets is not None
        if self.passes != self.at:
            return out
        return out._replace(loss=out.loss + (out.loss - out.loss.detach()) * 3e38 * 10)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_same_numbers_as_without_a_flag(run, flags, clip):
    """Clipping included: gradients are divided by what they exceed the bound by."""
    early, plain = (
        run(optimizer=optimizer, dropout=0.0, grad_clip=clip, eval_interval=4)
        for optimizer in ("watched", "adamw")
    )
    norms = [row["grad_norm"] for row in plain.recorder.rows()]
    assert min(norms) < 1 < max(norms)
    for a, b in zip(early.recorder.rows(), plain.recorder.rows(), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert a[key] == pytest.approx(b[key], rel=1e-4), (a["step"], key)
    for p, q in zip(early.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)
    assert [found.item() for found, _ in flags] == [0.0] * STEPS
    if clip:
        expected = [max(row["grad_norm"], 1.0) for row in early.recorder.rows()]
        assert [scale.item() for _, scale in flags] == pytest.approx(expected, rel=1e-6)
    else:
        assert all(scale is None for _, scale in flags)
    assert not hasattr(early.optimizer, "found_inf")
    assert not hasattr(early.optimizer, "grad_scale")
    assert all(p.grad is None for p in early.model.parameters())


@pytest.mark.parametrize("optimizer", ["watched", "adamw"])
def test_the_next_gradients_are_enqueued_before_an_outcome_is_read(run, monkeypatch, optimizer):
    """But for steps whose weights are evaluated or saved, and optimizers that know no flag."""
    calls = []
    for name in ("accumulate_gradients", "read_outcome", "evaluate"):
        owner = loop if name == "evaluate" else loop._Run
        original = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, name=name, original=original: calls.append(name) or original(*a)
        )
    run(optimizer=optimizer, steps=6, eval_interval=4)
    accumulate, read = "accumulate_gradients", "read_outcome"
    evaluated = [accumulate, read, "evaluate"]
    if optimizer == "adamw":
        between, last = [accumulate, read] * 3, [accumulate, read]
    else:
        between, last = [accumulate, *[accumulate, read] * 2], [accumulate]
        evaluated = [accumulate, read, read, "evaluate"]
    assert calls == between + evaluated + last + evaluated


@pytest.mark.parametrize("kind", [LossOverflows, NormOverflows, "nan"])
def test_a_step_left_out_leaves_the_state_before(run, flags, kind):
    model_class = disturbed(kind, at=5) if kind == "nan" else type("Broken", (kind,), {"at": 5})
    healthy = run(checkpoint_interval=4)
    del flags[:]
    broken = run(model_class=model_class, checkpoint_interval=4, keep=1)
    result = broken.result
    assert (result.status, result.step, result.diverged_at) == ("diverged", 4, 5)
    row = broken.recorder.rows()[-1]
    assert math.isfinite(row["train_loss"]) == (kind is NormOverflows)
    assert math.isfinite(row["grad_norm"]) == (kind is LossOverflows)
    assert [found.item() for found, _ in flags] == [0.0] * 4 + [1.0]
    assert broken.digests[:4] == healthy.digests[:4]
    step, saved = broken.store.load()
    assert step == 4
    left = broken.left()
    assert_identical(dict(left["model"]), saved["model"])
    assert_identical(left["optimizer"]["state"], saved["optimizer"]["state"])
    assert all(state["step"] == 4 for state in left["optimizer"]["state"].values())


def test_a_first_step_left_out_leaves_the_initial_weights(run):
    broken = run(model_class=disturbed("nan", at=1))
    assert (broken.result.status, broken.result.step) == ("diverged", 0)
    untrained = run(lr=0.0, steps=1)
    assert_identical(dict(broken.model.state_dict()), dict(untrained.model.state_dict()))


def test_a_state_that_turns_the_fused_step_off(run, flags):
    """Torch takes ``fused`` from a checkpoint, here from a run without; then there is no flag."""
    stopped = run("same", "adamw", model_class=disturbed("sigterm", at=5))
    assert stopped.result.step == 5
    resumed = run("same")
    assert resumed.result.status == "finished"
    assert flags == [(None, None)] * (STEPS - 5)
    assert_identical(
        dict(resumed.model.state_dict()), dict(run(optimizer="adamw").model.state_dict())
    )
