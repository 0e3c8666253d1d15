"""Parameters that are spread over devices (DTensor), and state that lies as they lie.

Every rule works element by element, and a block's scale needs the elements of one block only: so
a rank steps its own shard, and what counts is that no shard cuts a block, and that the state says
how it is spread (a plain tensor would be taken for replicated data by a distributed checkpoint).
"""

import math
from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


def is_sharded(t: Tensor) -> bool:
    """Say whether ``t`` is a DTensor, without importing the module that defines it."""
    # Looking up an attribute that is not there takes long: most tensors are plain.
    return type(t) not in _PLAIN and hasattr(t, "placements")


def local(t: Tensor) -> Tensor:
    """Return the local shard of a DTensor, waited for; any other tensor as it is."""
    if type(t) in _PLAIN:
        return t
    t = getattr(t, "_local_tensor", t)
    return t.wait() if hasattr(t, "wait") else t


def local_grad(p: Tensor) -> Tensor:
    """Return the gradient of ``p`` for the local shard of ``p``.

    A gradient may be laid out otherwise: ``Partial`` for a replicated norm under sequence
    parallelism, whose ranks hold parts of a sum. All ranks must call this in the same order.
    """
    g: Any = p.grad
    if is_sharded(g) and g.placements != p.placements:  # type: ignore[attr-defined]
        g = g.redistribute(p.device_mesh, p.placements)  # type: ignore[attr-defined]
    return local(g)


def whole(t: Any) -> Any:
    """Return a DTensor's global value, which is a collective; anything else as it is."""
    sharded = isinstance(t, Tensor) and is_sharded(t)
    return t.full_tensor() if sharded else t


def has_whole_rows(p: Tensor, block_size: int) -> bool:
    """Say whether the rows of a matrix (or more) are whole blocks: a rule on the shape alone."""
    return p.ndim >= 2 and p.shape[-1] % block_size == 0


def zero_scales(p: Tensor, block_size: int, dtype: torch.dtype) -> Tensor:
    """Return a zero scale for each block of ``p``, laid out as ``p`` is.

    Blocks run along the last dimension where that is whole blocks: shape
    ``(*p.shape[:-1], p.shape[-1] / block_size)``; else over the flattened tensor, whose last block
    may be shorter: shape ``(ceil(n / block_size),)``.

    Raises:
        ValueError: A shard would cut a block.
    """
    in_rows = p.ndim > 0 and p.shape[-1] % block_size == 0
    blocks = -(-p.numel() // block_size)
    shape = (*p.shape[:-1], p.shape[-1] // block_size) if in_rows else (blocks,)
    if not is_sharded(p):
        return torch.zeros(shape, dtype=dtype, device=p.device)
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh, placements = p.device_mesh, p.placements  # type: ignore[attr-defined]
    part = local(p)
    # Mesh dimensions that cut, with what they cut; a mesh dimension of one device cuts nothing.
    cuts = {i: q.dim for i, q in enumerate(placements) if hasattr(q, "dim") and mesh.size(i) > 1}
    if in_rows:
        local_shape = (*part.shape[:-1], part.shape[-1] // block_size)
        parts = [mesh.size(i) for i, dim in cuts.items() if dim % p.ndim == p.ndim - 1]
        # One cut gives each rank ceil(n / parts), as torch.chunk does; several must be even.
        size = -(-p.shape[-1] // math.prod(parts))
        even = len(parts) < 2 or size * math.prod(parts) == p.shape[-1]
        whole_blocks = even and size % block_size == 0
    else:
        local_shape = (-(-part.numel() // block_size),)
        placements = [Shard(0) if i in cuts else Replicate() for i in range(mesh.ndim)]
        whole_blocks = not cuts
        if len(cuts) == 1 and set(cuts.values()) == {0}:
            (devices,) = (mesh.size(i) for i in cuts)
            size = -(-p.shape[0] // devices) * (p.numel() // p.shape[0])
            # Scales are dealt out by torch.chunk, too: each rank must get those of its elements.
            whole_blocks = size % block_size == 0 and size // block_size == -(-blocks // devices)
    if not whole_blocks:
        instead = (
            "use a block_size that divides what a device holds of its last dimension"
            if has_whole_rows(p, block_size)
            else "whole_blocks=True keeps the state of such parameters in float32"
        )
        raise ValueError(
            f"a parameter of shape {tuple(p.shape)}, sharded as {list(p.placements)} over "  # type: ignore[attr-defined]
            f"{mesh.size()} devices, cannot have 8-bit state in blocks of {block_size}, as a shard "
            f"would cut a block; {instead}"
        )
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        torch.zeros(local_shape, dtype=dtype, device=p.device),
        mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride,
    )  # fmt: skip
