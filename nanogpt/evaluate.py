"""Validation loss on fixed windows, shared out over the ranks."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from nanogpt.runtime import Runtime


@torch.no_grad()
def evaluate(model: nn.Module, windows: np.ndarray, runtime: Runtime, chunk: int) -> list[float]:
    """Return the mean cross-entropy of each window, in order, on every rank.

    Pure cross-entropy, without auxiliary terms, in evaluation mode and the run's precision. Draws
    no random numbers, so it cannot disturb training.

    Args:
        model: The bare model, not its training wrapper.
        windows: (n, context + 1) token ids.
        runtime: The run's runtime.
        chunk: Windows in one forward pass.
    """
    n, rank, world = len(windows), runtime.rank, runtime.world
    losses = torch.zeros(n, device=runtime.device)
    training = model.training
    model.eval()
    with runtime.autocast():
        mine = range(rank * n // world, (rank + 1) * n // world)
        for start in mine[::chunk]:
            stop = min(start + chunk, mine.stop)
            tokens = runtime.host_tensor(windows[start:stop].astype(np.int64))
            tokens = runtime.to_device(tokens)
            logits = model(tokens[:, :-1]).logits
            # One window at a time: the float32 copy of all logits would be the run's peak memory.
            rows = zip(logits, tokens[:, 1:], strict=True)
            losses[start:stop] = torch.stack([F.cross_entropy(r.float(), t) for r, t in rows])
    model.train(training)
    return runtime.sum(losses).tolist()  # each rank left the others' windows zero
