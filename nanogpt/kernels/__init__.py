"""What the compiler leaves on the table: passes over memory that can be spared.

On CUDA, where Triton is installed, each element is moved as seldom as can be; elsewhere the same
sums are plain torch. What each saves of GPT-2 Small's step, 241 ms on an H100 without them:

- ``linear_cross_entropy``, the output layer with its loss: 8.7 ms.
- ``gelu_linear``, GELU and the layer after it: 11.6 ms, and 3.4 by its derivative in that product.
- ``add_norm``, a branch added to the residual stream and the sum normalised: 7.9 ms.
- ``split_linear``, the layer of queries, keys and values: 3.8 ms.

Importing this package does not import Triton.

No kernel takes a float as an argument: in a compiled graph it would be one of 64 bits, and all
arithmetic that it enters with it.
"""

import importlib.util

import torch.nn.functional as F
from torch import Tensor, nn

HAS_TRITON = importlib.util.find_spec("triton") is not None
enabled = True  # False takes the plain path everywhere; set it before a model is compiled


def add_norm(residual: Tensor, branch: Tensor | None, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return ``residual + branch`` and its layer norm.

    Args:
        residual: (..., C), its dtype stays.
        branch: (..., C), or None: nothing is added.
        norm: A layer norm over C, without bias.
    """
    if branch is None:
        return residual, norm(residual)
    if _fused(branch):
        from nanogpt.kernels.norm import AddNorm

        return AddNorm.apply(residual, branch, norm.weight, norm.eps)
    residual = residual + branch
    return residual, norm(residual)


def gelu_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``gelu(x) @ weight.T``, GELU by the error function and not its tanh approximation.

    Args:
        x: (..., H).
        weight: (C, H).
    """
    if _fused(x):
        from nanogpt.kernels.activation import GeluLinear

        return GeluLinear.apply(x, weight)
    return F.linear(F.gelu(x), weight)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, passes: int = 1
) -> Tensor:
    """Return the mean cross-entropy, in float32, of the logits ``hidden @ weight.T``.

    The softmax is taken in float32 of logits in the precision of the product; the kernel turns
    them into their own gradient in place, so that no float32 copy of them ever exists.

    Args:
        hidden: (..., C).
        weight: (V, C).
        targets: (...), int64 in [0, V). Any other value makes the kernel's loss NaN.
        passes: What the mean is divided by, where so many passes make up a step.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    if _fused(hidden):
        from nanogpt.kernels.cross_entropy import LinearCrossEntropy

        return LinearCrossEntropy.apply(hidden, weight, targets, passes)
    return F.cross_entropy(F.linear(hidden, weight).float(), targets) / passes


def split_linear(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Return ``x @ weight.T`` in three parts of equal width.

    Args:
        x: (..., C).
        weight: (3 * D, C).
    """
    if _fused(x):
        from nanogpt.kernels.projection import SplitLinear

        return SplitLinear.apply(x, weight)
    return F.linear(x, weight).chunk(3, -1)


def _fused(tensor: Tensor) -> bool:
    return enabled and HAS_TRITON and tensor.is_cuda
