"""Guards the loop in one process: what is trained, logged, saved, and what ends it."""

import math
import os
import signal
import threading
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from trainer_kit import (
    CONTEXT,
    STEPS,
    VOCAB,
    Run,
    assert_identical,
    decay_groups,
    disturbed,
    small_model,
    small_settings,
    write_data,
)

from nanogpt.data import TokenData
from nanogpt.errors import CheckpointError, OutOfMemory, UserError
from nanogpt.evaluate import evaluate
from nanogpt.loop import train
from nanogpt.model import GPT, Output
from nanogpt.runtime import Runtime


@pytest.fixture
def run(tmp_path, data):
    """Makes runs, each in a folder of its own unless one is named."""
    names = iter(range(100))
    return lambda folder=None, **kw: Run(tmp_path / str(folder or next(names)), data, **kw)


def weights(run):
    return run.model.state_dict()


def test_rows_and_result(run):
    done = run(steps=30, eval_interval=12, log_interval=5)
    rows = done.recorder.rows()
    assert [row["step"] for row in rows] == [1, 5, 10, 12, 15, 20, 24, 25, 30]
    assert [row["step"] for row in rows if "val_loss" in row] == [12, 24, 30]
    assert all(row["tokens"] == row["step"] * 4 * CONTEXT for row in rows)
    assert rows[0]["train_loss"] == pytest.approx(math.log(VOCAB), rel=0.05)
    assert rows[0]["lr"] == pytest.approx(0.01 / 4)
    assert rows[-1]["lr"] == pytest.approx(0.001)
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] - 0.5
    assert done.result.status == "finished"
    assert done.result.step == 30
    assert done.result.final_val_loss == rows[-1]["val_loss"]
    assert done.result.final_train_loss == rows[-1]["train_loss"]


def test_training_is_learning(run):
    """The walk's next token is one of three: ln 3 is the floor."""
    done = run(steps=400, batch=8, lr=0.02, dropout=0.0)
    assert math.log(3) < done.result.final_val_loss < 1.25


def test_a_step_by_hand(data, run):
    """One SGD step, with the loss, the clip and the decay worked out beside the loop."""
    done = run(optimizer="sgd", steps=1, warmup_steps=0, lr=0.5, dropout=0.0, grad_clip=0.3)
    with Runtime("cpu") as runtime:
        model = small_model(runtime, dropout=0.0)
    x, y = map(torch.from_numpy, data.batch(7, 1, CONTEXT, 4))
    loss = nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
    (row,) = done.recorder.rows()
    assert row["train_loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert row["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert norm > 0.3
    for now, p, g in zip(done.model.parameters(), parameters, gradients, strict=True):
        decay = 0.1 * p if p.dim() >= 2 else 0.0
        torch.testing.assert_close(now, p - 0.5 * (g * 0.3 / norm + decay), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_accumulation_equals_one_big_batch(run, micro_batch):
    whole, pieces = (
        run(optimizer="sgd", dropout=0.0, lr=0.1, micro_batch=m) for m in (None, micro_batch)
    )
    for a, b in zip(whole.recorder.rows(), pieces.recorder.rows(), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-6)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)
    for a, b in zip(whole.model.parameters(), pieces.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_evaluating_logging_and_saving_change_no_bit(run, data, tmp_path):
    plain = run(log_interval=STEPS)
    busy = run(log_interval=1, eval_interval=1, eval_windows=3, checkpoint_interval=1, keep=1)
    assert_identical(weights(plain), weights(busy))
    with Runtime("cpu") as runtime:  # and neither does having no recorder and no checkpoints
        model = small_model(runtime)
        optimizer = torch.optim.AdamW(decay_groups(model), lr=1.0)
        train(small_settings(), model=model, optimizer=optimizer, data=data, runtime=runtime)
    assert_identical(weights(plain), model.state_dict())


@pytest.mark.parametrize("fused", [False, True])
def test_who_watches_sees_each_step_before_and_after_with_its_gradients(run, data, fused):
    plain = run(optimizer="adamw_fused" if fused else "adamw")
    seen = []

    with Runtime("cpu") as runtime:
        model = small_model(runtime)
        optimizer = torch.optim.AdamW(decay_groups(model), lr=1.0, fused=fused)
        (first, *_) = model.parameters()

        def watch(step):
            before = first.detach().clone()
            rate = optimizer.param_groups[0]["lr"]
            assert rate == small_settings().learning_rate(step)

            def after():
                seen.append((step, first.grad is not None, bool((first != before).any())))

            return after if step % 2 else None

        settings = small_settings()
        train(settings, model=model, optimizer=optimizer, data=data, runtime=runtime, watch=watch)
    assert seen == [(step, True, True) for step in range(1, STEPS + 1, 2)]
    assert_identical(weights(plain), model.state_dict())


def test_a_recorder_that_is_an_empty_list_is_a_recorder(data):
    class Rows(list):
        def resume(self, step):
            self.clear()

        def windows(self, step, losses):
            assert step == STEPS

        log = list.append

    rows = Rows()
    with Runtime("cpu") as runtime:
        model = small_model(runtime)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        settings = small_settings()
        train(settings, model=model, optimizer=optimizer, data=data, runtime=runtime, recorder=rows)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_fused", "sgd"])
def test_resume_is_exact(run, precision, optimizer):
    """Stopped by a signal in the midst of things, with dropout on, and gone on by new objects."""
    common = {"optimizer": optimizer, "micro_batch": 2, "eval_interval": 4}

    def start(folder, **more):
        return run(folder, runtime=Runtime("cpu", precision), **common, **more)

    straight = start("straight")
    stopped = start("stopped", model_class=disturbed("sigterm", at=9))  # in the fifth step
    assert stopped.result.status == "interrupted"
    assert stopped.result.step == 5
    assert stopped.result.signal == signal.SIGTERM
    resumed = start("stopped")
    assert resumed.result == straight.result
    assert_identical(resumed.left(), straight.left())


def test_permuted_resume_is_exact(run, data):
    """From the middle of a pass to the middle of the next one."""
    windows = (len(data.train) - 1) // CONTEXT
    common = {"order": "permuted", "batch": 40, "dropout": 0.0}
    straight = run("straight", **common)
    assert windows % 40
    assert windows < 40 * STEPS
    run("stopped", model_class=disturbed("sigterm", at=5), **common)
    resumed = run("stopped", **common)
    assert len(resumed.digests) == STEPS - 5
    assert_identical(resumed.left(), straight.left())
    other = run("other", **common | {"order": "windows"})
    assert other.digests[0] != straight.digests[0]


def test_a_finished_run_started_again_trains_nothing(run):
    first = run("same")
    second = run("same", progress=lambda *_: pytest.fail("took a step"))
    assert second.result == first.result
    assert_identical(second.left(), first.left())


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(run):
    first = run("same", checkpoint_interval=5)
    newest = max((first.store.folder).glob("step-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="passed over"):
        second = run("same", checkpoint_interval=5)
    assert len(second.digests) == STEPS - 10
    assert_identical(second.left(), first.left())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_finishes_the_step_and_saves(run, number, capfd):
    """A terminal that is gone stops a run as SIGTERM does."""
    before = signal.getsignal(number)

    def progress(row, steps):
        if row["step"] == 4:
            os.kill(os.getpid(), number)

    stopped = run(progress=progress)
    told = signal.SIGTERM if number == signal.SIGHUP else number
    assert (stopped.result.status, stopped.result.signal) == ("interrupted", told)
    assert stopped.store.load()[0] == stopped.result.step == 5
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err == (
        "told to stop: the step in progress will be finished and saved; once more to stop at once\n"
    )


def test_under_nohup_a_terminal_that_goes_stops_nothing(run):
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = run(progress=lambda row, steps: os.kill(os.getpid(), signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, former)
    assert (done.result.status, done.result.step) == ("finished", STEPS)


def test_an_interval_of_zero_saves_nothing_at_all(run, capfd):
    """Neither at the end nor on a signal; what an earlier start has saved is gone on with."""
    done = run("same", checkpoint_interval=0)
    assert not done.store.folder.exists()
    stopped = run("same", checkpoint_interval=0, model_class=disturbed("sigterm", at=5))
    assert (stopped.result.status, stopped.result.step) == ("interrupted", 5)
    assert not stopped.store.folder.exists()
    assert "will be finished; once more" in capfd.readouterr().err
    run("same", checkpoint_interval=5, model_class=disturbed("sigterm", at=7))
    resumed = run("same", checkpoint_interval=0)
    assert len(resumed.digests) == STEPS - 7
    assert_identical(resumed.left(), done.left())


def test_trains_outside_the_main_thread(run):
    done = []
    thread = threading.Thread(target=lambda: done.append(run(steps=2).result))
    thread.start()
    thread.join()
    assert done[0].status == "finished"


class NormOverflows(GPT):
    """In its fifth training pass the loss is finite, its derivative infinite."""

    passes = 0

    def forward(self, tokens, targets=None, passes=1):
        out = super().forward(tokens, targets, passes)
        self.passes += targets is not None
        if targets is None or self.passes != 5:
            return out
        return out._replace(loss=out.loss + (out.loss - out.loss.detach()) * 3e38 * 10)


@pytest.mark.parametrize("model_class", [disturbed("nan", at=5), NormOverflows])
def test_divergence_is_a_result(run, model_class):
    healthy = run(steps=STEPS, checkpoint_interval=2)
    broken = run(model_class=model_class, checkpoint_interval=2, keep=1, log_interval=4)
    result = broken.result
    assert (result.status, result.step, result.diverged_at) == ("diverged", 4, 5)
    assert math.isnan(result.final_val_loss)
    rows = broken.recorder.rows()
    assert [row["step"] for row in rows] == [1, 4, 5]
    assert not (math.isfinite(rows[-1]["train_loss"]) and math.isfinite(rows[-1]["grad_norm"]))
    # No step was taken, and the checkpoint of the last finite weights is there.
    assert broken.digests == healthy.digests[:4]
    step, state = broken.store.load()
    assert step == 4
    assert_identical(state["model"], dict(weights(broken)))


class Exploding(torch.optim.SGD):
    """Its fourth step leaves infinite weights."""

    taken = 0

    def step(self, closure=None):
        super().step(closure)
        self.taken += 1
        if self.taken == 4:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(math.inf)


@pytest.mark.parametrize(("steps", "at"), [(STEPS, 5), (4, 4)])
def test_broken_weights_are_never_saved(run, monkeypatch, steps, at):
    """Neither between steps nor after the last one, when only the evaluation can tell."""
    monkeypatch.setitem(Run.__init__.__globals__["OPTIMIZERS"], "x", lambda g: Exploding(g, lr=1))
    broken = run(optimizer="x", steps=steps, checkpoint_interval=1, keep=1)
    assert broken.result.status == "diverged"
    assert (broken.result.diverged_at, broken.result.step) == (at, 4)
    assert broken.store.load()[0] == 3


def test_a_full_disk_ends_the_run_with_a_sentence_and_the_old_checkpoint(run, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    def progress(row, steps):
        if row["step"] == 5:
            monkeypatch.setattr(os, "replace", full)

    with pytest.raises(CheckpointError, match=r"step 6 could not be .*No space left"):
        run("same", checkpoint_interval=3, progress=progress)
    monkeypatch.undo()
    straight = run(checkpoint_interval=3)
    assert_identical(run("same", checkpoint_interval=3).left(), straight.left())


class Hungry(GPT):
    def forward(self, tokens, targets=None, passes=1):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")


def test_out_of_memory_is_one_sentence_with_the_knobs(run):
    with pytest.raises(OutOfMemory, match="micro_batch 2, precision fp32: try a smaller") as caught:
        run(model_class=Hungry, micro_batch=2)
    assert "\n" not in str(caught.value)


class WithAux(GPT):
    def forward(self, tokens, targets=None, passes=1):
        out = super().forward(tokens, targets, passes)
        return out if targets is None else out._replace(aux=self.wte.weight.square().sum() / passes)


def test_the_auxiliary_loss_is_trained_and_logged_apart(run):
    plain, with_aux = run(dropout=0.0), run(dropout=0.0, model_class=WithAux, micro_batch=2)
    first, last = with_aux.recorder.rows()[0], with_aux.recorder.rows()[-1]
    assert first["train_loss"] == pytest.approx(plain.recorder.rows()[0]["train_loss"], rel=1e-6)
    assert last["aux_loss"] < first["aux_loss"]  # it pulls the embedding to zero
    assert "aux_loss" not in plain.recorder.rows()[0]
    assert set(Output._fields) == {"loss", "logits", "aux"}


def test_evaluation_is_pure_cross_entropy_of_each_window(data):
    with Runtime("cpu") as runtime:
        model = small_model(runtime, dropout=0.5).train()
        windows = data.val_windows(CONTEXT)
        rng = torch.get_rng_state()
        losses = evaluate(model, windows, runtime, chunk=5)
        assert torch.equal(torch.get_rng_state(), rng)
        assert model.training
        assert losses == pytest.approx(evaluate(model, windows, runtime, chunk=1), rel=1e-6)
        model.eval()
        for window, loss in zip(windows, losses, strict=True):
            tokens = torch.tensor(window.tolist())[None]
            assert loss == pytest.approx(model(tokens[:, :-1], tokens[:, 1:]).loss.item(), rel=1e-6)


def test_one_autocast_context_gives_the_gradients_of_many(run, monkeypatch):
    cached = run(runtime=Runtime("cpu", "amp_bf16"), micro_batch=1)

    def autocast(self, enabled=True):
        return torch.autocast("cpu", torch.bfloat16, enabled=enabled, cache_enabled=False)

    monkeypatch.setattr(Runtime, "autocast", autocast)
    uncached = run(runtime=Runtime("cpu", "amp_bf16"), micro_batch=1)
    assert cached.digests == uncached.digests


def test_compiled_training_keeps_numbers_and_clean_names(run, monkeypatch):
    """With a stand-in for the code generator; the capture of the graph is the real one."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain = run(dropout=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = run("same", dropout=0.0, runtime=Runtime("cpu", compile=True), steps=STEPS)
    for a, b in zip(plain.recorder.rows(), compiled.recorder.rows(), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-5)
    assert compiled.store.load()[1]["model"].keys() == plain.model.state_dict().keys()
    assert_identical(run("same", dropout=0.0).left(), compiled.left())  # read without compiling


def test_a_group_with_a_peak_of_its_own_follows_the_same_shape(data):
    rates = []
    with Runtime("cpu") as runtime:
        model = small_model(runtime)
        first, second = decay_groups(model)
        optimizer = torch.optim.SGD([first, {**second, "initial_lr": 0.04}], lr=1.0)
        optimizer.register_step_post_hook(
            lambda *_: rates.append([group["lr"] for group in optimizer.param_groups])
        )
        settings = small_settings()
        train(settings, model=model, optimizer=optimizer, data=data, runtime=runtime)
    assert len(rates) == STEPS
    for step, (one, other) in enumerate(rates, start=1):
        assert one == settings.learning_rate(step)
        assert other == pytest.approx(0.04 / settings.lr * one)


def test_a_tensor_learning_rate_is_filled_in_place(data):
    lr = torch.tensor(1.0)
    with Runtime("cpu") as runtime:
        model = small_model(runtime)
        optimizer = torch.optim.AdamW(decay_groups(model), lr=lr, foreach=False)
        held = [group["lr"] for group in optimizer.param_groups]
        train(
            small_settings(min_lr_ratio=0.25),
            model=model,
            optimizer=optimizer,
            data=data,
            runtime=runtime,
        )
    for group, before in zip(optimizer.param_groups, held, strict=True):
        assert group["lr"] is before
        assert group["lr"].item() == pytest.approx(0.0025)


def test_state_of_other_parameters_is_refused(run, data):
    run("same")
    with pytest.raises(UserError, match="state of other parameters"):
        run("same", model_class=Reordered)


class Reordered(GPT):
    def __init__(self, config):
        super().__init__(config)
        self.wpe, self.wte = self._modules.pop("wpe"), self._modules.pop("wte")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"micro_batch": 3}, r"micro_batch 3 does not divide the 4 sequences of a rank"),
        ({"lr": -1.0}, r"lr is -1\.0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"eval_windows": 0}, "eval_windows is 0"),
        ({"min_lr_ratio": 1.5}, r"min_lr_ratio is 1\.5"),
        ({"order": "random"}, "order is 'random'; allowed are windows and permuted"),
        ({"context": 500}, "too few for one window of context 500"),
        ({"context": 20}, "longer than the model's context, 16"),
    ],
)
def test_refused_settings(run, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        run(**changes)


def test_a_vocabulary_beyond_the_models(tmp_path):
    data = TokenData.open(write_data(tmp_path / "data", vocab_size=100))
    with pytest.raises(UserError, match="'walk' has a vocabulary of 100, the model one of 61"):
        Run(tmp_path / "run", data)


def test_runtime_refusals_and_restored_settings(monkeypatch):
    with pytest.raises(UserError, match="precision is 'fp8'; allowed are fp32, amp_bf16, bf16"):
        Runtime("cpu", "fp8")
    with pytest.raises(UserError, match="device is 'tpu'"):
        Runtime("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        Runtime("cuda")
    with Runtime("cpu", "amp_bf16", deterministic=True):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
