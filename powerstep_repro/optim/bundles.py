"""Flat tensors in bundles: what the multi-tensor path takes at a time."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# On the CPU a bundle's passes should hit the cache, yet keep every thread busy (torch splits
# element-wise work in parts of 32,768). Elsewhere the bound keeps the temporaries of a step below
# half a GiB, however large the model.
CPU_BUNDLE_PER_THREAD = 1 << 17
DEVICE_BUNDLE = 1 << 26


def bundle_limit(device: torch.device) -> int:
    """Return how many elements the multi-tensor path takes at a time."""
    if torch.compiler.is_compiling():  # the compiler fuses the passes; cutting would be in its way
        return 1 << 62
    if device.type == "cpu":
        return CPU_BUNDLE_PER_THREAD * max(2, torch.get_num_threads())
    return DEVICE_BUNDLE


def bundles(
    ps: list[Tensor],
    gs: list[Tensor],
    states: list[dict[str, Tensor]],
    cut_state: Callable[[dict[str, Tensor], int, int], dict[str, Tensor]],
    limit: int | None,
    align: int = 1,
) -> Iterator[tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]]:
    """Cut flat tensors into bundles of at most ``limit`` elements, or of a tensor each.

    Args:
        ps: One-dimensional parameters.
        gs: Their gradients, cut alike.
        states: Their states.
        cut_state: Returns the part of a state for a first element and a number of elements.
        limit: Elements of a bundle, at least one block; None for whole tensors, one a bundle.
        align: Elements of a block, which stay together.

    Yields:
        Parameters, gradients and states, one each a piece.
    """
    if limit is None:
        yield from (([p], [g], [s]) for p, g, s in zip(ps, gs, states, strict=True))
        return
    limit = max(align, limit // align * align)
    bundle, room = ([], [], []), limit
    for p, g, state in zip(ps, gs, states, strict=True):
        for start in range(0, p.numel(), limit):
            length = min(limit, p.numel() - start)
            if length > room:
                yield bundle
                bundle, room = ([], [], []), limit
            bundle[0].append(p[start : start + length])
            bundle[1].append(g[start : start + length])
            bundle[2].append(cut_state(state, start, length))
            room -= length
    if bundle[0]:
        yield bundle
