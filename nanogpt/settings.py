"""What a run is asked to do, and what came of it."""

from dataclasses import dataclass

from nanogpt.data import ORDERS
from nanogpt.errors import UserError
from nanogpt.runtime import Runtime
from nanogpt.schedule import learning_rate


@dataclass(frozen=True)
class Settings:
    """The numbers of a run. All counts are in optimizer steps unless said otherwise.

    Attributes:
        steps: Length of the run.
        batch: Sequences in a step, over all ranks and micro-batches.
        context: Tokens in a sequence.
        lr: The highest learning rate.
        seed: Chooses the batches and the dropout masks.
        order: ``windows``, batches of random windows with replacement; or ``permuted``, each window
            once a pass over the data, in a new order each pass.
        micro_batch: Sequences of one forward pass on one rank; None takes a rank's whole share.
        warmup_steps: Steps of linear warm-up.
        min_lr_ratio: Last learning rate over the highest.
        grad_clip: Largest global gradient norm; 0 does not clip.
        eval_interval: Steps between evaluations; 0 evaluates at the last step only, which is
            always evaluated.
        eval_windows: Use the first so many validation windows; None uses all.
        log_interval: Steps between logged rows. The first step, the last, an evaluated and a
            diverged one are always logged.
        checkpoint_interval: Steps between checkpoints; one is written at the end and on a stop
            signal besides. 0 writes none at all.
    """

    steps: int
    batch: int
    context: int
    lr: float
    seed: int = 1337
    order: str = "windows"
    micro_batch: int | None = None
    warmup_steps: int = 0
    min_lr_ratio: float = 0.1
    grad_clip: float = 1.0
    eval_interval: int = 0
    eval_windows: int | None = None
    log_interval: int = 1
    checkpoint_interval: int = 250

    def __post_init__(self):
        least = {"steps": 1, "batch": 1, "context": 1, "lr": 0, "seed": 0, "log_interval": 1}
        least |= {"micro_batch": 1, "warmup_steps": 0, "grad_clip": 0, "eval_windows": 1}
        least |= {"eval_interval": 0, "checkpoint_interval": 0, "min_lr_ratio": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not value >= bound:
                raise UserError(f"{name} is {value}; it must be at least {bound}")
        if self.order not in ORDERS:
            raise UserError(f"order is {self.order!r}; allowed are {' and '.join(ORDERS)}")
        if self.min_lr_ratio > 1:
            raise UserError(f"min_lr_ratio is {self.min_lr_ratio}; it must lie in [0, 1]")

    def share(self, runtime: Runtime) -> slice:
        """Return this rank's positions in the global batch."""
        per_rank, rest = divmod(self.batch, runtime.world)
        if rest:
            raise UserError(f"batch {self.batch} does not divide among {runtime.world} ranks")
        return slice(runtime.rank * per_rank, (runtime.rank + 1) * per_rank)

    def micro_size(self, runtime: Runtime) -> int:
        """Return the sequences of one forward pass on one rank."""
        share = self.share(runtime)
        per_rank = share.stop - share.start
        size = self.micro_batch or per_rank
        if per_rank % size:
            raise UserError(
                f"micro_batch {size} does not divide the {per_rank} sequences of a rank "
                f"(batch {self.batch} over world size {runtime.world})"
            )
        return size

    def learning_rate(self, step: int, peak: float | None = None) -> float:
        """Return the learning rate of a step; of parameters with another highest rate, theirs."""
        return learning_rate(
            step,
            peak=self.lr if peak is None else peak,
            steps=self.steps,
            warmup_steps=self.warmup_steps,
            min_ratio=self.min_lr_ratio,
        )

    def evaluates(self, step: int) -> bool:
        """Say whether a step is followed by an evaluation."""
        return step == self.steps or (self.eval_interval > 0 and step % self.eval_interval == 0)

    def logs(self, step: int) -> bool:
        """Say whether a step's row is due."""
        return step in (1, self.steps) or step % self.log_interval == 0

    def saves(self, step: int) -> bool:
        """Say whether a step is followed by a checkpoint."""
        interval = self.checkpoint_interval
        return interval > 0 and (step == self.steps or step % interval == 0)


@dataclass(frozen=True)
class Result:
    """How a run ended; the same on all ranks.

    Attributes:
        status: ``finished``, ``diverged`` or ``interrupted``.
        step: Optimizer steps taken, those before a resume included.
        diverged_at: The step whose loss or gradient norm was not finite, or None.
        final_val_loss: Validation loss of the last evaluation; NaN if the run diverged, None if
            there was no evaluation yet.
        final_train_loss: Loss of the last step, non-finite ones included; None before the first.
        signal: The signal that interrupted the run, or None.
    """

    status: str
    step: int
    diverged_at: int | None = None
    final_val_loss: float | None = None
    final_train_loss: float | None = None
    signal: int | None = None
