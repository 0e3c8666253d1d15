"""Learning-rate schedule: linear warm-up, then a cosine down to a fraction of the peak."""

import math


def learning_rate(
    step: int, *, peak: float, steps: int, warmup_steps: int, min_ratio: float
) -> float:
    """Return the learning rate of one step.

    Warm-up follows nanoGPT (step s of a warm-up of W runs at ``peak * s / (W + 1)``); the peak is
    reached at step W + 1 and ``min_ratio * peak`` at the last step.

    Args:
        step: The optimizer step, 1 to ``steps``.
        peak: The highest learning rate.
        steps: Length of the run.
        warmup_steps: Steps before the peak; 0 starts at the peak. If it covers the whole run, the
            run only warms up.
        min_ratio: Last learning rate over the peak, 0 to 1.
    """
    if step <= warmup_steps:
        return peak * step / (warmup_steps + 1)
    # A decay of a single step (steps == warmup_steps + 1) stays at the peak.
    progress = (step - warmup_steps - 1) / max(1, steps - warmup_steps - 1)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (min_ratio + (1.0 - min_ratio) * cosine)
