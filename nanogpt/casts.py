"""Weights in the precision of the products, cast once for all passes of a step."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.kernels import accumulate


class Linear(nn.Linear):
    """A layer without bias, whose weight a copy in another dtype can stand in for.

    Attributes:
        copy: What is multiplied by while training, or None: the weight itself.
    """

    copy: Tensor | None = None

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    @property
    def factor(self) -> Tensor:
        """The weight, or its copy."""
        return self.copy if self.training and self.copy is not None else self.weight

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return F.linear(x, self.factor)


class CastOnce:
    """Copies of a model's weights for the passes of a step, as a context manager.

    Autocast within a compiled graph casts each weight in each pass, and its gradient back before
    that is added to those of earlier passes. A copy's gradient is added as it is: the same sums, in
    float32, in less traffic.

    Args:
        model: Its :class:`Linear` layers take part.
        dtype: Of the copies.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        layers = [layer for layer in model.modules() if isinstance(layer, Linear)]
        self.layers = [layer for layer in layers if layer.weight.requires_grad]
        self.dtype = dtype
        self._firsts: dict[Tensor, Tensor] = {}  # gradients by weight, until there is a second one

    def __enter__(self) -> "CastOnce":
        for layer in self.layers:
            layer.copy = layer.weight.detach().to(self.dtype).requires_grad_()
            layer.copy.register_post_accumulate_grad_hook(partial(self._hand_over, layer.weight))
        return self

    def __exit__(self, *exception) -> None:
        for layer in self.layers:
            layer.copy = None
        self._firsts.clear()

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the weights as they are now; for the first pass of each step."""
        if self.layers:  # another family's model has none of these
            torch._foreach_copy_([x.copy for x in self.layers], [x.weight for x in self.layers])

    def finish(self) -> None:
        """Leave all gradients in the weights' ``grad``; after the last pass of each step."""
        for weight, first in self._firsts.items():
            weight.grad = first.to(weight.dtype)
        self._firsts.clear()

    def _hand_over(self, weight: Tensor, copy: Tensor) -> None:
        """Add a copy's gradient to its weight's.

        The first one is only kept: cast with the addition of the second, it is moved once less.
        """
        part, copy.grad = copy.grad, None
        so_far = self._firsts.pop(weight, None) if weight.grad is None else weight.grad
        if so_far is None:
            self._firsts[weight] = part
        else:
            weight.grad = accumulate(so_far, part, weight.dtype)
