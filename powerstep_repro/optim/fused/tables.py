"""Where a launch finds its tensors: addresses and sizes on the device, kept between steps."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from powerstep_repro.optim.fused import capturing

# Pinned buffers set aside for CUDA-graph captures, in which none can be allocated.
SPARES = 2


class Table:
    """The tables of one launch over tensors of given sizes.

    Sizes, and with them the list of programs, are written once. Addresses are compared on the host
    at each step (microseconds) and sent again only if one has changed: gradients that
    ``zero_grad(set_to_none=True)`` freed usually come back where they were. They are sent through
    pinned memory, without a sync.

    A CUDA graph keeps the addresses it was captured with, whatever eager steps come after it: each
    capture gets buffers of its own, and its copy is part of the graph.

    Args:
        numels: Elements of each tensor, all >= 1.
        parts: Rows of the address table.
        block: Elements a program.
        device: Where the tensors are.

    Raises:
        RuntimeError: A CUDA graph is being captured: sizes cannot be sent then.
    """

    def __init__(self, numels: Sequence[int], parts: int, block: int, device: torch.device):
        if capturing(device):
            raise RuntimeError(
                "a fused step over new tensors cannot be captured in a CUDA graph; "
                "take one step outside of the graph first"
            )
        sizes = torch.tensor(numels, dtype=torch.int64, device="cpu")
        counts = (sizes + (block - 1)) // block
        tensor = torch.repeat_interleave(torch.arange(len(numels), device="cpu"), counts)
        first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        chunk = torch.arange(len(tensor), device="cpu") - first
        self.programs = len(tensor)
        self.chunks = torch.stack([tensor, chunk], dim=1).to(device, torch.int32)
        self.numels = sizes.to(device)
        self.device = device
        self._shape = (parts, len(numels))
        self._addresses: list[int] | None = None
        self._pointers = torch.empty(self._shape, dtype=torch.int64, device=device)
        self._spares = [self._spare() for _ in range(SPARES)] if device.type == "cuda" else []
        self._captured: list[tuple[Tensor, Tensor]] = []
        self.aligned = False

    def pointers(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return the (parts, tensors) int64 table of these addresses, on the device."""
        addresses = list(chain.from_iterable(rows))
        captured = capturing(self.device)
        if addresses == self._addresses and not captured:
            return self._pointers
        self.aligned = all(address % 16 == 0 for address in addresses)
        host = torch.tensor(addresses, dtype=torch.int64, device="cpu").view(self._shape)
        if captured:
            if not self._spares:
                raise RuntimeError(
                    f"more than {SPARES} CUDA graphs captured without a step between them"
                )
            pinned, pointers = self._spares.pop()
            pinned.copy_(host)
            pointers.copy_(pinned, non_blocking=True)
            self._captured.append((pinned, pointers))  # read and written by every replay
            return pointers
        if self.device.type == "cuda":
            # A buffer of its own for each copy: torch recycles it once the copy is done.
            host = host.pin_memory()
            while len(self._spares) < SPARES:
                self._spares.append(self._spare())
        self._pointers.copy_(host, non_blocking=True)
        self._addresses = addresses
        return self._pointers

    def _spare(self) -> tuple[Tensor, Tensor]:
        pinned = torch.empty(self._shape, dtype=torch.int64, device="cpu", pin_memory=True)
        return pinned, torch.empty(self._shape, dtype=torch.int64, device=self.device)
