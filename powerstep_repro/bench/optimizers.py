"""Time of an optimizer's step, beside the bytes that it must move."""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from nanogpt.model import GPT, GPTConfig
from powerstep_repro.bench.contenders import Contender, contenders
from powerstep_repro.bench.timing import copy_bandwidth, host_seconds, interleaved
from powerstep_repro.errors import UserError
from powerstep_repro.optim import state_bytes
from powerstep_repro.optim.fused import available

MODELS = {
    "gpt2_small": GPTConfig(),
    "gpt2_medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    # Six million parameters: larger than a CPU's caches, and a step in milliseconds.
    "gpt2_mini": GPTConfig(vocab_size=8192, context=256, n_layer=5, n_head=4, n_embd=256),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Torch's own AdamW, which every time is held against.
YARDSTICKS = ("adamw (fused)", "adamw (foreach)")


@dataclass
class Tensors:
    """A model's parameters with gradients, random as in training; shared by all contenders."""

    params: list[torch.nn.Parameter]

    @classmethod
    def of(cls, model: str, dtype: torch.dtype, device: torch.device) -> "Tensors":
        """Make parameters of 0.02 and gradients of 1e-4 each, normally distributed."""
        with torch.device("meta"):
            shapes = [p.shape for p in GPT(MODELS[model]).parameters()]
        generator = torch.Generator(device).manual_seed(0)

        def normal(shape, std):
            return torch.randn(shape, generator=generator, device=device).mul_(std).to(dtype)

        params = [torch.nn.Parameter(normal(shape, 0.02)) for shape in shapes]
        for p in params:
            p.grad = normal(p.shape, 1e-4)
        return cls(params)

    @property
    def count(self) -> int:
        """Elements of all parameters."""
        return sum(p.numel() for p in self.params)

    def fingerprint(self) -> list[float]:
        """Return a sum for each tensor, to see whether a step changed it."""
        with torch.no_grad():
            return torch.stack([p.double().abs().sum() for p in self.params]).tolist()


def bench_optimizers(
    models: Sequence[str],
    dtype: str,
    device: torch.device,
    *,
    released: Path | None = None,
    only: str | None = None,
    seconds: float = 0.25,
    tell: Callable[[dict], None] = lambda _: None,
) -> dict:
    """Time every contender's step on the tensors of each model.

    Args:
        models: Names of ``MODELS``.
        dtype: "fp32" or "bf16", of parameters and gradients.
        device: Where.
        released: A clone of the paper's repository, whose optimizers then take part.
        only: Regular expression that labels must contain; torch's AdamW always takes part.
        seconds: Time of one round of one contender.
        tell: Gets what there is after each model.

    Returns:
        What goes into the JSON file: ``copy_bytes_per_s`` and ``rows``, one a model and contender.
    """
    bandwidth = copy_bandwidth(device)
    entrants = contenders(device, available(device, DTYPES[dtype]), released)
    fused_adamw, foreach_adamw = YARDSTICKS
    if only:
        labels = ", ".join(c.label for c in entrants)
        entrants = [c for c in entrants if c.label in YARDSTICKS or re.search(only, c.label)]
        if not any(re.search(only, c.label) for c in entrants):
            raise UserError(f"--only {only} matches none of {labels}")
    rows: list[dict] = []
    results = {"dtype": dtype, "copy_bytes_per_s": bandwidth, "rows": rows}
    for model in models:
        tensors = Tensors.of(model, DTYPES[dtype], device)
        ready, failures = {}, {}
        for contender in entrants:
            try:
                ready[contender.label] = _prepare(contender, tensors, device)
            except Exception as error:  # a peer that cannot run here must not end the others
                failures[contender.label] = f"{type(error).__name__}: {error}".splitlines()[0]
        steps = {label: entrant.step for label, entrant in ready.items()}
        rounds = interleaved(steps, seconds, device)
        seconds_of = {label: statistics.median(times) for label, times in rounds.items()}
        for contender in entrants:
            row = {"model": model, "params": tensors.count, "label": contender.label}
            if contender.label in failures:
                rows.append(row | {"failed": failures[contender.label]})
                continue
            entrant = ready[contender.label]
            moved = 3 * DTYPES[dtype].itemsize * tensors.count + 2 * entrant.state_bytes
            median = seconds_of[contender.label]
            rows.append(
                row
                | {
                    "ms": 1e3 * median,
                    "ms_rounds": [1e3 * s for s in rounds[contender.label]],
                    "host_ms": 1e3 * host_seconds(steps[contender.label], device),
                    "bytes": moved,
                    "floor_ms": 1e3 * moved / bandwidth,
                    "times_floor": median * bandwidth / moved,
                    "ratio_to_adamw_fused": median / seconds_of[fused_adamw],
                    "ratio_to_adamw_foreach": median / seconds_of[foreach_adamw],
                    "state_bytes": entrant.state_bytes,
                    "extra_bytes": entrant.extra_bytes,
                }
            )
        del ready, steps, tensors
        tell(results)
    return results


class Ready(NamedTuple):
    """A contender that is warmed up and was seen to change weights.

    ``extra_bytes`` is what a step takes of the device's memory and gives back.
    """

    step: Callable[[], object]
    state_bytes: int
    extra_bytes: int | None


def _prepare(contender: Contender, tensors: Tensors, device: torch.device) -> Ready:
    optimizer = contender.make(tensors.params)
    before = tensors.fingerprint()
    for _ in range(2):
        optimizer.step()
    unchanged = sum(a == b for a, b in zip(before, tensors.fingerprint(), strict=True))
    if unchanged:
        raise UserError(f"{unchanged} of {len(before)} tensors did not change in two steps")
    state = contender.state_bytes
    state = state_bytes(optimizer) if state is None else int(state * tensors.count)
    if device.type != "cuda":
        return Ready(optimizer.step, state, None)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    allocated = torch.cuda.memory_allocated(device)
    optimizer.step()
    torch.cuda.synchronize(device)
    return Ready(optimizer.step, state, torch.cuda.max_memory_allocated(device) - allocated)
