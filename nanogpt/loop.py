"""The training loop.

A step is: gradients of the global batch, one check that they are finite, the update, and then
evaluation, the log row and the checkpoint where they are due. The host enqueues a step's gradients
and reads the step before then, so that the device always has work; the update waits for that. If
loss or gradient norm are not finite, the device leaves the update out by a flag, or, where the
optimizer knows no flag, the host looks first. So whatever is read, weights and state are those
after the last finite step.

A row is on disk before the checkpoint of its step, so a resumed run cuts the log back to the
checkpoint and goes on: the log is one history, however often the run was killed.
"""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nanogpt.checkpoint import CheckpointStore
from nanogpt.data import TokenData
from nanogpt.errors import CheckpointError, UserError
from nanogpt.evaluate import evaluate
from nanogpt.runtime import Runtime, seeded
from nanogpt.settings import Result, Settings
from nanogpt.signals import SIGNALS, StopSignals

Row = dict[str, Any]
Watch = Callable[[int], Callable[[], None] | None]


class RecorderLike(Protocol):
    """What the loop asks of a recorder, on rank 0 only."""

    def resume(self, step: int) -> None:
        """Forget what was recorded after ``step``; 0 forgets all."""

    def log(self, row: Row) -> None:
        """Record a row, flushed."""

    def windows(self, step: int, losses: list[float]) -> None:
        """Record the loss of each validation window."""


def train(
    settings: Settings,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: TokenData,
    runtime: Runtime,
    recorder: RecorderLike | None = None,
    checkpoints: CheckpointStore | None = None,
    progress: Callable[[Row, int], None] | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train a model, going on from its newest checkpoint if there is one.

    Args:
        settings: The run's numbers.
        model: Placed by ``runtime``; called as ``model(tokens, targets, passes) -> Output``.
        optimizer: Any, over the model's parameters; named ones tie its state to names. Its
            learning rate is set each step; a group's ``initial_lr``, torch's name for it, goes
            before the settings' highest rate. If it honours ``found_inf`` and ``grad_scale``,
            torch's convention for gradient scaling, it gets them.
        data: The tokens.
        runtime: Entered already.
        recorder: Gets the rows, on rank 0.
        checkpoints: Where to save and to resume from; None does neither.
        progress: Called on rank 0 with each step's row and the number of steps.
        watch: Called on rank 0 with each step's number before the optimizer's step. What it
            returns, if anything, is called after it, while the gradients are still there; it may
            look, and must change nothing.

    Returns:
        How the run ended. A non-finite loss or gradient norm is a result (``diverged``): weights
        and optimizer state stay as they were, and so does the last checkpoint.

    Raises:
        UserError: Settings, data and model do not fit, or a checkpoint belongs to another run.
        OutOfMemory: The device's memory does not suffice.
        CheckpointError: A checkpoint could not be written; on all ranks.
    """
    data.check_vocabulary(getattr(model, "vocab_size", data.vocab_size))
    windows = data.val_windows(settings.context, settings.eval_windows)
    micro = settings.micro_size(runtime)
    share = settings.share(runtime)
    if not runtime.is_main:
        recorder = progress = watch = None
    run = _Run(
        settings, model, optimizer, runtime, micro, windows, recorder, checkpoints, progress, watch
    )

    def draw(step: int) -> list[Tensor]:
        arrays = data.batch(
            settings.seed, step, settings.context, settings.batch, share, settings.order
        )
        return [runtime.host_tensor(array) for array in arrays]

    with runtime.memory_errors(micro), StopSignals(run.stop_notice()) as signals:
        run.resume()
        if recorder is not None:
            recorder.resume(run.done.step)
        run.prepare()
        pending: _Metrics | None = None  # of the step before, if the host has not read them
        with closing(_one_ahead(draw, run.done.step + 1, settings.steps)) as batches:
            for step, (tokens, targets) in batches:
                # Enqueued on the device; the host waits for none of it.
                losses = run.accumulate_gradients(step, tokens, targets)
                metrics = run.reduce_metrics(step, *losses, signals)
                # Meanwhile the step before: its weights are still as it left them.
                if pending and (result := run.read_outcome(pending)):
                    return result
                run.update(metrics)
                pending = metrics
                if run.host_waits(step):
                    if result := run.read_outcome(pending):
                        return result
                    pending = None
    done = run.done
    return Result("finished", max(done.step, settings.steps), None, done.val_loss, done.train_loss)


class _Progress(NamedTuple):
    """How far a run has come; what a checkpoint holds besides the tensors."""

    step: int
    val_loss: float | None
    train_loss: float | None


class _Metrics(NamedTuple):
    """A step's numbers, the same on all ranks: on the device, and on their way to the host.

    Gradient norm; then, summed over the ranks: loss, stop requests by signal, and auxiliary loss
    if there is one.
    """

    step: int
    values: Tensor
    read: Callable[[], list[float]]  # waits for them to arrive


@dataclass
class _Run:
    """The parts of a step, with what they share."""

    settings: Settings
    model: nn.Module
    optimizer: torch.optim.Optimizer
    runtime: Runtime
    micro: int  # sequences of one forward pass
    windows: np.ndarray  # of the validation split
    recorder: RecorderLike | None
    checkpoints: CheckpointStore | None
    progress: Callable[[Row, int], None] | None
    watch: Watch | None

    @property
    def saving(self) -> bool:
        return self.checkpoints is not None and self.settings.checkpoint_interval > 0

    def stop_notice(self) -> str:
        if not self.runtime.is_main:
            return ""
        saved = " and saved" if self.saving else ""
        return (
            f"told to stop: the step in progress will be finished{saved}; once more to stop at once"
        )

    def prepare(self) -> None:
        """Get ready for the first step, after the state was loaded."""
        self.trainable = self.runtime.trainable(self.model.train())
        # Torch's own optimizers take from a loaded state whether they are fused, and claim what
        # they claimed before.
        self.takes_flag = (
            self.runtime.device.type != "mps"
            and getattr(self.optimizer, "_step_supports_amp_scaling", False)
            and all(group.get("fused", True) for group in self.optimizer.param_groups)
        )
        self.clock = time.perf_counter()  # when the step before was done

    def accumulate_gradients(
        self, step: int, tokens: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Leave the global batch's gradients in ``p.grad``; return this rank's mean losses."""
        # This rank's share of the batch, (B, T), in micro-batches.
        xs = self.runtime.to_device(tokens).split(self.micro)
        ys = self.runtime.to_device(targets).split(self.micro)
        losses, aux_losses = [], []
        # One autocast context around all micro-batches: outside a graph, that casts once a step.
        with self.runtime.autocast():
            for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
                # Dropout's masks are a function of these four: nothing to save for a resume.
                seeded(self.settings.seed, step, index, self.runtime.rank)
                self.runtime.sync_gradients(index == len(xs) - 1)  # the forward pass reads it
                out = self.trainable(x, y, len(xs))
                objective = out.loss if out.aux is None else out.loss + out.aux
                with self.runtime.autocast(enabled=False):
                    objective.backward()
                losses.append(out.loss.detach())
                if out.aux is not None:
                    aux_losses.append(out.aux.detach())
        return torch.stack(losses).sum(), torch.stack(aux_losses).sum() if aux_losses else None

    def reduce_metrics(
        self, step: int, loss: Tensor, aux_loss: Tensor | None, signals: StopSignals
    ) -> _Metrics:
        asked = [torch.full_like(loss, signals.received == number) for number in SIGNALS]
        aux_losses = [] if aux_loss is None else [aux_loss]
        sums = self.runtime.sum(torch.stack([loss, *asked, *aux_losses]))
        # In float32 for bf16 gradients too. Equal on all ranks, since the gradients are.
        norms = torch._foreach_norm(self.gradients(), 2, dtype=torch.float32)
        values = torch.cat([torch.stack(norms).norm().view(1), sums])
        return _Metrics(step, values, self.runtime.to_host(values))

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def update(self, metrics: _Metrics) -> None:
        """Clip by the global norm and take the optimizer's step, if norm and loss are finite."""
        clip = self.settings.grad_clip
        for group in self.optimizer.param_groups:
            lr = self.settings.learning_rate(metrics.step, peak=group.get("initial_lr"))
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)  # in place: a compiled or captured step reads this tensor
            else:
                group["lr"] = lr
        look = self.watch(metrics.step) if self.watch else None
        if self.takes_flag:
            # The device clips, and leaves the step out where it must.
            norm_and_loss = metrics.values[:2]
            self.optimizer.found_inf = 1 - norm_and_loss.isfinite().all().float()
            self.optimizer.grad_scale = (norm_and_loss[0] / clip).clamp(min=1) if clip else None
            self.optimizer.step()
            del self.optimizer.found_inf, self.optimizer.grad_scale
        else:
            norm, loss, *_ = metrics.read()
            if not (math.isfinite(norm) and math.isfinite(loss)):
                return
            if 0 < clip < norm:
                torch._foreach_mul_(self.gradients(), clip / norm)
            self.optimizer.step()
        if look:
            look()
        self.optimizer.zero_grad(set_to_none=True)

    def host_waits(self, step: int) -> bool:
        """Whether a step is read at once: its weights are needed, or it was waited for already."""
        saves = self.saving and self.settings.saves(step)
        return not self.takes_flag or self.settings.evaluates(step) or saves

    def read_outcome(self, metrics: _Metrics) -> Result | None:
        """Read a step's numbers; evaluate, log and save where due; say how the run ends, if so."""
        settings, step, world = self.settings, metrics.step, self.runtime.world
        norm, loss, *sums = metrics.read()
        loss /= world
        now = time.perf_counter()
        seconds, self.clock = now - self.clock, now
        row = {
            "step": step,
            "tokens": step * settings.batch * settings.context,
            "train_loss": loss,
            "lr": settings.learning_rate(step),
            "grad_norm": norm,
            "step_ms": 1e3 * seconds,
            "tokens_per_s": settings.batch * settings.context / seconds,
        }
        if len(sums) > len(SIGNALS):
            row["aux_loss"] = sums.pop() / world
        finite = math.isfinite(loss) and math.isfinite(norm)

        val_loss = self.done.val_loss
        evaluated = finite and settings.evaluates(step)
        if evaluated:
            losses = evaluate(self.model, self.windows, self.runtime, self.micro)
            row["val_loss"] = val_loss = math.fsum(losses) / len(losses)
            if self.recorder is not None:
                self.recorder.windows(step, losses)
            # After the last update no further step will notice what it broke.
            finite = step < settings.steps or math.isfinite(val_loss)

        if self.recorder is not None and (settings.logs(step) or evaluated or not finite):
            self.recorder.log(row)
        if self.progress:
            self.progress(row, settings.steps)

        if not finite:
            return Result("diverged", step if evaluated else step - 1, step, math.nan, loss)
        self.done = _Progress(step, val_loss, loss)
        stop = next((number for number, count in zip(SIGNALS, sums, strict=True) if count), None)
        if stop or settings.saves(step):
            self.save()
        if stop and step < settings.steps:
            return Result("interrupted", step, None, val_loss, loss, stop)
        if self.host_waits(step):
            self.clock = time.perf_counter()  # evaluating and saving are no part of the next step
        return None

    def resume(self) -> None:
        """Load the newest checkpoint, if there is one."""
        found = self.checkpoints.load() if self.checkpoints else None
        step, state = found or (0, {})
        if step != (main := self.runtime.from_main(step)):
            raise UserError(
                f"rank {self.runtime.rank} finds the checkpoint of step {step}, rank 0 that of "
                f"step {main}: {self.checkpoints.folder} must be one folder, seen by all ranks"
            )
        self.done = _Progress(step, state.get("val_loss"), state.get("train_loss"))
        if found is None:
            return
        there, here = _shapes(state["model"]), _shapes(self.model.state_dict())
        if differing := [name for name in there | here if there.get(name) != here.get(name)]:
            raise UserError(
                f"the checkpoint of step {step} in {self.checkpoints.folder} is of another model: "
                f"it differs in {', '.join(differing)}"
            )
        saved, live = state["optimizer"]["param_groups"], self.optimizer.param_groups
        if [g.get("param_names") for g in live] != [g.get("param_names") for g in saved]:
            raise UserError(
                f"the checkpoint of step {step} in {self.checkpoints.folder} holds the optimizer "
                "state of other parameters, or of these in another order"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def save(self) -> None:
        """Save on rank 0, if the run saves at all; fail on all ranks if it fails there.

        Weights that the update has just broken are not saved: the next step reports the
        divergence, and the last finite checkpoint must not have been rotated away by then.
        """
        if not self.saving:
            return
        problem = None
        if self.runtime.is_main and all(bool(p.isfinite().all()) for p in self.model.parameters()):
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "val_loss": self.done.val_loss,
                "train_loss": self.done.train_loss,
            }
            try:
                self.checkpoints.save(self.done.step, state)
            except CheckpointError as error:
                problem = str(error)
        if problem := self.runtime.from_main(problem):
            raise CheckpointError(problem)


def _shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}


def _one_ahead(draw: Callable[[int], Any], first: int, last: int) -> Iterator[tuple[int, Any]]:
    """Yield (step, draw(step)) for each step while a thread draws the next one."""
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
        coming = pool.submit(draw, first) if first <= last else None
        for step in range(first, last + 1):
            ready = coming.result()
            if step < last:
                coming = pool.submit(draw, step + 1)
            yield step, ready
