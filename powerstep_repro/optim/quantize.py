"""Block-wise 8-bit codes: a flat tensor as one byte an element and one float32 scale a block.

A block is ``block_size`` neighbours of the flattened tensor (the last may be shorter); its scale
is its largest magnitude s. An element x is stored as the code of x/s and read back as value·s:

    dequantize(quantize(x)) = value[argmin_c |value[c] - x/s|] · s

The codes differ in the 255 or 256 values in [-1, 1] (signed) or [0, 1] (unsigned):

- linear: c/127 for c = -127..127, or c/255 for c = 0..255. Error at most s/254 or s/510.
- dynamic: the map of Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022),
  seven decades with the more values the higher the decade. Error at most s/142 or s/284 at the
  top, but a relative precision that holds down to s·1e-6. The signed map has +1 but no -1.
- released: the signed linear code for all values, as in the authors' code. Scales are raised by
  1e-12 for coding (against 0/0) but not for reading back, and stored in the parameter's dtype.

A block of zeros stays zero. A block that holds NaN or infinity is read back without a finite
element, since its scale is not finite.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from powerstep_repro.optim.sharded import zero_scales


@dataclass(frozen=True)
class LinearCode:
    """The values c/levels; round half to even."""

    levels: int
    dtype: torch.dtype
    added: float = 0.0  # to a scale, for coding
    name = "linear"
    zero = 0  # the code of 0

    def encode(self, x: Tensor) -> Tensor:
        """Return round(levels·x), clamped to the levels."""
        low = -self.levels if self.dtype.is_signed else 0
        return x.mul(self.levels).round_().clamp_(low, self.levels).to(self.dtype)

    def decode(self, codes: Tensor) -> Tensor:
        """Return codes/levels; the outermost codes give 1 (and -1) exactly."""
        # By a tensor: for a number, torch multiplies by its rounded reciprocal on a GPU.
        values = codes.float()
        return values.div_(values.new_full((), self.levels))


@dataclass(frozen=True)
class DynamicCode:
    """The 256 sorted values of ``dynamic_map``; a tie between two goes to the lower one."""

    signed: bool
    name = "dynamic"
    dtype = torch.uint8
    added = 0.0

    @property
    def zero(self) -> int:
        """Return the index of 0 in the map."""
        return 127 if self.signed else 0

    def encode(self, x: Tensor) -> Tensor:
        """Return the index of the nearest value.

        A binary search costs 36 ns an element on a CPU. Here the upper 16 bits of x (sign,
        exponent, 7 bits of mantissa) give an index that is right or one too low, since no two
        boundaries share their upper 16 bits; one comparison settles which.
        """
        first_guess, boundaries = _dynamic_tables(self.signed, x.device)
        x = x.float().contiguous()
        index = first_guess.index_select(0, (x.view(torch.int32) >> 16).view(-1).add_(1 << 15))
        return (index + (x.view(-1) > boundaries.index_select(0, index))).view(x.shape)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the map's entries."""
        entries = dynamic_map(self.signed, codes.device)
        return entries.index_select(0, codes.view(-1).int()).view(codes.shape)


# A map between [-1, 1], or [0, 1], and one byte.
BlockCode = LinearCode | DynamicCode

LINEAR = LinearCode(127, torch.int8)
LINEAR_UNSIGNED = LinearCode(255, torch.uint8)
DYNAMIC = DynamicCode(signed=True)
DYNAMIC_UNSIGNED = DynamicCode(signed=False)
RELEASED = LinearCode(127, torch.int8, added=1e-12)


def block_code(name: str, *, signed: bool = True) -> BlockCode:
    """Return the code "dynamic", "linear" or "released"; unsigned for values >= 0."""
    codes: dict[str, tuple[BlockCode, BlockCode]] = {
        "dynamic": (DYNAMIC, DYNAMIC_UNSIGNED),
        "linear": (LINEAR, LINEAR_UNSIGNED),
        "released": (RELEASED, RELEASED),
    }
    if name not in codes:
        raise ValueError(f"code must be dynamic, linear or released, not {name!r}")
    return codes[name][0 if signed else 1]


@cache
def dynamic_map(signed: bool = True, device: torch.device | str = "cpu") -> Tensor:
    """Return the 256 values of the dynamic code, sorted, float32.

    For i = 0..6: the mid-points of n = 2^i (signed) or 2^(i+1) (unsigned) equal parts of
    [0.1, 1], times 10^(i-6), with their negatives if signed; and 0 and 1. The tensor is shared:
    do not write to it.
    """
    values = [0.0, 1.0]
    for i in range(7):
        n = 2**i if signed else 2 ** (i + 1)
        decade = [(0.1 + 0.9 * (k + 0.5) / n) * 10.0 ** (i - 6) for k in range(n)]
        values += decade + ([-v for v in decade] if signed else [])
    return torch.tensor(sorted(values), dtype=torch.float32, device=device)


def quantize(x: Tensor, code: BlockCode, block_size: int = 128) -> tuple[Tensor, Tensor]:
    """Code a tensor in blocks of its flattened elements.

    Args:
        x: n elements, of any float dtype and shape.
        code: One of ``block_code``'s.
        block_size: Elements a block, >= 1.

    Returns:
        codes, of the shape of ``x`` and ``code.dtype``, and ceil(n / block_size) float32 scales.
    """
    blocks = in_blocks(x, block_size)
    scales = blocks.abs().amax(dim=1).float()
    divisors = scales + code.added if code.added else torch.where(scales == 0, 1, scales)
    codes = code.encode(blocks / divisors[:, None])
    return codes.view(-1)[: x.numel()].to(code.dtype).view(x.shape), scales


def dequantize(codes: Tensor, scales: Tensor, code: BlockCode, block_size: int = 128) -> Tensor:
    """Read back what ``quantize`` stored, as float32 elements in the shape of ``codes``."""
    values = in_blocks(code.decode(codes), block_size) * scales.view(-1, 1)
    return values.view(-1)[: codes.numel()].view(codes.shape)


def zero_blocks(p: Tensor, code: BlockCode, block_size: int) -> tuple[Tensor, Tensor]:
    """Return the codes of zeros, of the shape of ``p``, and their scales; laid out as ``p`` is.

    Raises:
        ValueError: ``p`` is sharded, and a shard would cut a block.
    """
    scales = zero_scales(p, block_size, p.dtype if code is RELEASED else torch.float32)
    like = torch.contiguous_format
    return torch.full_like(p, code.zero, dtype=code.dtype, memory_format=like), scales


def in_blocks(x: Tensor, block_size: int) -> Tensor:
    """Return ``x``, flattened, as (blocks, block_size), padded with zeros if it must be."""
    x, missing = x.reshape(-1), -x.numel() % block_size
    return (pad(x, (0, missing)) if missing else x).view(-1, block_size)


@cache
def _dynamic_tables(signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the index for the lowest number of each 16-bit prefix, and the upper boundaries."""
    entries = dynamic_map(signed).double()
    boundaries = ((entries[1:] + entries[:-1]) / 2).float()
    prefix = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32, device="cpu") << 16
    lowest = torch.where(prefix < 0, prefix | 0xFFFF, prefix).view(torch.float32)
    index = torch.bucketize(lowest, boundaries, out_int32=True)
    # Beyond the last entry there is no boundary; NaN (index 255) fails every comparison.
    upper = torch.cat([boundaries, torch.tensor([torch.inf], device="cpu")])
    return index.to(device), upper.to(device)
