"""The training loop.

A step is: gradients of the global batch, one check that they are finite, the update, and then
evaluation, the log row and the checkpoint where they are due. If the optimizer can leave a step out
by a flag on the device, the host enqueues the update, and the next step's gradients too, before it
reads the outcome of the check, so that the device always has work. The next update waits for it:
whatever the outcome, weights and state are those of the step that is read.

A row is on disk before the checkpoint of its step, so a resumed run cuts the log back to the
checkpoint and goes on: the log is one history, however often the run was killed.
"""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from nanogpt.checkpoint import CheckpointStore
from nanogpt.data import TokenData
from nanogpt.errors import CheckpointError, InputError
from nanogpt.evaluate import evaluate
from nanogpt.runtime import Runtime, seeded
from nanogpt.schedule import learning_rate
from nanogpt.settings import Result, Settings
from nanogpt.signals import SIGNALS, StopSignals

Row = dict[str, Any]

STOPPING = (
    "told to stop: the step in progress will be finished and saved; once more to stop at once"
)


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
) -> Result:
    """Train a model, going on from its newest checkpoint if there is one.

    Args:
        settings: The run's numbers.
        model: Placed by ``runtime``; called as ``model(tokens, targets, passes) -> Output``.
        optimizer: Any, over the model's parameters (:func:`nanogpt.runtime.decay_groups`). Its
            learning rate is set each step. If it honours ``found_inf`` and ``grad_scale``, torch's
            convention for gradient scaling, it gets them.
        data: The tokens.
        runtime: Entered already.
        recorder: Gets the rows, on rank 0.
        checkpoints: Where to save and to resume from; None does neither.
        progress: Called on rank 0 with each step's row and the number of steps.

    Returns:
        How the run ended. A non-finite loss or gradient norm is a result (``diverged``): weights
        and optimizer state stay as they were, and so does the last checkpoint.

    Raises:
        InputError: Settings, data and model do not fit, or a checkpoint belongs to another run.
        OutOfMemory: The device's memory does not suffice.
        CheckpointError: A checkpoint could not be written; on all ranks.
    """
    data.check_vocabulary(getattr(model, "vocab_size", data.vocab_size))
    windows = data.val_windows(settings.context, settings.eval_windows)
    micro = settings.micro_size(runtime)
    if not runtime.is_main:
        recorder = progress = None
    run = _Run(settings, model, optimizer, runtime, micro, windows, recorder, checkpoints, progress)

    def draw(step: int) -> list[Tensor]:
        share = settings.share(runtime)
        arrays = data.batch(settings.seed, step, settings.context, settings.batch, share)
        return [runtime.host_tensor(array) for array in arrays]

    notice = STOPPING if runtime.is_main else ""
    with runtime.memory_errors(micro), StopSignals(notice) as signals:
        run.resume()
        done = run.done.step
        if recorder is not None:
            recorder.resume(done)
        run.trainable = runtime.trainable(model.train())
        run.takes_flag = _takes_flag(optimizer, runtime.device)
        unread: _Enqueued | None = None
        run.clock = time.perf_counter()
        with closing(_one_ahead(draw, done + 1, settings.steps)) as batches:
            for step, (tokens, targets) in batches:
                lr = run.set_learning_rate(step)
                losses = run.accumulate(step, tokens, targets)
                agreed = run.agree(*losses, signals)
                enqueued = _Enqueued(step, lr, runtime.to_host(agreed))
                if unread and (result := run.settle(unread)):
                    return result
                if run.takes_flag:
                    run.update_if_finite(agreed)
                unread = enqueued if run.takes_flag and not run.at_rest(step) else None
                if unread is None and (result := run.settle(enqueued)):
                    return result
    last = run.done
    return Result("finished", max(last.step, settings.steps), None, last.val_loss, last.train_loss)


class Progress(NamedTuple):
    """How far a run has come; what a checkpoint holds besides the tensors."""

    step: int
    val_loss: float | None
    train_loss: float | None


class _Enqueued(NamedTuple):
    """A step whose outcome the host has not read."""

    step: int
    lr: float
    outcome: Callable[[], list[float]]  # of :meth:`_Run.agree`


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
    done: Progress = field(default_factory=lambda: Progress(0, None, None))
    trainable: nn.Module | None = None  # the model wrapped for ranks and compiled
    takes_flag: bool = False  # whether the optimizer can leave a step out by a flag on the device
    clock: float = 0.0  # when the step before was read, or what followed it was done; seconds

    def set_learning_rate(self, step: int) -> float:
        lr = learning_rate(
            step,
            peak=self.settings.lr,
            steps=self.settings.steps,
            warmup_steps=self.settings.warmup_steps,
            min_ratio=self.settings.min_lr_ratio,
        )
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)  # in place: a compiled or captured step reads this tensor
            else:
                group["lr"] = lr
        return lr

    def accumulate(
        self, step: int, tokens: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Leave the global batch's gradients in ``p.grad``; return this rank's mean losses."""
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

    def agree(self, loss: Tensor, aux_loss: Tensor | None, signals: StopSignals) -> Tensor:
        """Return what :meth:`read` reads, on the device and the same on all ranks.

        Gradient norm first, then sums over the ranks: loss, stop signals asked for, and auxiliary
        loss if there is one.
        """
        asked = [torch.full_like(loss, signals.received == number) for number in SIGNALS]
        aux_losses = [] if aux_loss is None else [aux_loss]
        sums = self.runtime.sum(torch.stack([loss, *asked, *aux_losses]))
        # In float32 for bf16 gradients too. Equal on all ranks, since the gradients are.
        norms = torch._foreach_norm(self.gradients(), 2, dtype=torch.float32)
        return torch.cat([torch.stack(norms).norm().view(1), sums])

    def read(self, enqueued: _Enqueued) -> tuple[float, float | None, float, int | None]:
        """Return mean losses over the ranks, gradient norm and stop signal.

        The only place in a step where the host waits for the device.
        """
        norm, loss, *asked = enqueued.outcome()
        aux_loss = asked.pop() / self.runtime.world if len(asked) > len(SIGNALS) else None
        stop = next((number for number, count in zip(SIGNALS, asked, strict=True) if count), None)
        return loss / self.runtime.world, aux_loss, norm, stop

    def at_rest(self, step: int) -> bool:
        """Whether something follows the step that needs its weights as they are."""
        intervals = self.settings.eval_interval, self.settings.checkpoint_interval
        return any(self.settings.due(step, interval) for interval in intervals)

    def settle(self, enqueued: _Enqueued) -> Result | None:
        """Read a step's outcome; evaluate, log and save where due; say how the run ends, if so."""
        settings, step = self.settings, enqueued.step
        loss, aux_loss, norm, stop = self.read(enqueued)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite and not self.takes_flag:
            self.update(norm)
        now = time.perf_counter()
        row = self.row(step, loss, aux_loss, norm, enqueued.lr, now - self.clock)
        self.clock = now

        val_loss = self.done.val_loss
        evaluated = finite and settings.due(step, settings.eval_interval)
        if evaluated:
            losses = evaluate(self.model, self.windows, self.runtime, self.micro)
            row["val_loss"] = val_loss = math.fsum(losses) / len(losses)
            if self.recorder is not None:
                self.recorder.windows(step, losses)
            # After the last update no further step will notice what it broke.
            finite = step < settings.steps or math.isfinite(val_loss)

        due = step == 1 or settings.due(step, settings.log_interval)
        if self.recorder is not None and (due or evaluated or not finite):
            self.recorder.log(row)
        if self.progress:
            self.progress(row, settings.steps)

        if not finite:
            return Result("diverged", step if evaluated else step - 1, step, math.nan, loss)
        self.done = Progress(step, val_loss, loss)
        if stop or settings.due(step, settings.checkpoint_interval):
            self.save()
        if stop and step < settings.steps:
            return Result("interrupted", step, None, val_loss, loss, stop)
        if self.at_rest(step):
            self.clock = time.perf_counter()
        return None

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.model.parameters() if p.grad is not None]

    def update(self, norm: float) -> None:
        """Clip by the global norm and take the optimizer's step."""
        clip = self.settings.grad_clip
        if 0 < clip < norm:
            torch._foreach_mul_(self.gradients(), clip / norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def update_if_finite(self, agreed: Tensor) -> None:
        """Enqueue :meth:`update`; the device leaves it out if norm or loss are not finite."""
        clip = self.settings.grad_clip
        self.optimizer.found_inf = 1 - agreed[:2].isfinite().all().float()
        self.optimizer.grad_scale = (agreed[0] / clip).clamp(min=1) if clip > 0 else None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        del self.optimizer.found_inf, self.optimizer.grad_scale

    def row(
        self,
        step: int,
        loss: float,
        aux_loss: float | None,
        norm: float,
        lr: float,
        seconds: float,
    ) -> Row:
        tokens = self.settings.batch * self.settings.context
        row = {
            "step": step,
            "tokens": step * tokens,
            "train_loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "step_ms": 1e3 * seconds,
            "tokens_per_s": tokens / seconds,
        }
        return row if aux_loss is None else row | {"aux_loss": aux_loss}

    def resume(self) -> None:
        """Load the newest checkpoint, if there is one."""
        found = self.checkpoints.load() if self.checkpoints else None
        step, state = found or (0, {})
        if step != (main := self.runtime.from_main(step)):
            raise InputError(
                f"rank {self.runtime.rank} finds the checkpoint of step {step}, rank 0 that of "
                f"step {main}: {self.checkpoints.folder} must be one folder, seen by all ranks"
            )
        if found is None:
            return
        there, here = _shapes(state["model"]), _shapes(self.model.state_dict())
        if differing := [name for name in there | here if there.get(name) != here.get(name)]:
            raise InputError(
                f"the checkpoint of step {step} in {self.checkpoints.folder} is of another model: "
                f"it differs in {', '.join(differing)}"
            )
        live = [dict(group) for group in self.optimizer.param_groups]
        saved = state["optimizer"]["param_groups"]
        if [g.get("param_names") for g in live] != [g.get("param_names") for g in saved]:
            raise InputError(
                f"the checkpoint of step {step} in {self.checkpoints.folder} holds the optimizer "
                "state of other parameters, or of these in another order"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group, before in zip(self.optimizer.param_groups, live, strict=True):
            for key, value in before.items():
                group.setdefault(key, value)  # one that the saved state does not know
        self.done = Progress(step, state["val_loss"], state["train_loss"])

    def save(self) -> None:
        """Save on rank 0; fail on all ranks if it fails there.

        Weights that the update has just broken are not saved: the next step reports the
        divergence, and the last finite checkpoint must not have been rotated away by then.
        """
        if self.checkpoints is None:
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


def _takes_flag(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether the optimizer's steps honour ``found_inf`` and ``grad_scale``."""
    # torch's own optimizers take from a loaded state whether they are fused, and claim what they
    # claimed before.
    return (
        device.type != "mps"
        and getattr(optimizer, "_step_supports_amp_scaling", False)
        and all(group.get("fused", True) for group in optimizer.param_groups)
    )


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
