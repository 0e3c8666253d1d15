"""Parameters and steps of the optimizers' tests, the same in every run."""

import torch


def parameters(*shapes, dtype=torch.float32, seed=0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def take_steps(optimizer, params, steps=5, seed=1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()
