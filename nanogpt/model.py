"""GPT-2 as nanoGPT has it: pre-norm, learned positions, tied embeddings, no bias anywhere.

Shapes in comments: B sequences, T tokens, C embedding width, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.errors import UserError
from nanogpt.kernels import add_norm, gelu_linear, linear_cross_entropy, split_linear


class Output(NamedTuple):
    """What a model returns, GPT-2 and other families alike.

    With targets, ``loss`` is the mean cross-entropy (a float32 scalar) and ``logits`` is None:
    a compiled graph that returned both would fill a gradient of zeros, (B, T, V), for the logits.
    Without targets, ``logits`` is (B, T, V). ``aux`` is a further scalar of the training objective,
    already weighted (the balance loss of a mixture of experts), or None. Where a step is made up of
    several passes, both are divided by their number, and their sums are the step's.
    """

    loss: Tensor | None
    logits: Tensor | None
    aux: Tensor | None = None


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT-2 model.

    Attributes:
        vocab_size: Rows of the token embedding.
        context: Longest sequence, in tokens.
        n_layer: Transformer blocks.
        n_head: Attention heads; must divide ``n_embd``.
        n_embd: Embedding width.
        dropout: Probability in [0, 1), on embeddings, attention and both branches of a block.
        tied_head: Whether logits are products with the token embedding, as in GPT-2, or with a
            matrix of their own.
    """

    vocab_size: int = 50304
    context: int = 1024
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    tied_head: bool = True

    def __post_init__(self):
        for name in ("vocab_size", "context", "n_layer", "n_head", "n_embd"):
            if (value := getattr(self, name)) < 1:
                raise UserError(f"{name} is {value}; it must be at least 1")
        if self.n_embd % self.n_head:
            raise UserError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"dropout is {self.dropout}; it must lie in [0, 1)")


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.n_head, self.dropout = config.n_head, config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)  # (B, heads, T, C/heads)
            for part in split_linear(x, self.qkv.weight)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, c)
        return F.dropout(self.proj(y), self.dropout, self.training)


class MLP(nn.Module):
    """The feed-forward branch, four times as wide inside."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.dropout = config.dropout
        self.fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        y = gelu_linear(self.fc(x), self.proj.weight)
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """One transformer block: attention and feed-forward, each on a normalised input."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=False)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=False)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take the residual stream and what the block before adds to it; return the same two.

        A branch is added where the sum is normalised, so that both are one pass over memory.
        """
        x, h = add_norm(x, branch, self.ln_1)  # all (B, T, C)
        x, h = add_norm(x, self.attn(h), self.ln_2)
        return x, self.mlp(h)


class GPT(nn.Module):
    """GPT-2 for language modelling. Initial weights come from torch's default generator."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.context, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, bias=False)
        if not config.tied_head:
            self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self._initialise()

    def _initialise(self) -> None:
        # GPT-2: N(0, 0.02), with the projections into the residual stream scaled down so that its
        # variance does not grow with depth (2 * n_layer branches add to it).
        residual_std = 0.02 / math.sqrt(2 * self.config.n_layer)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                std = residual_std if name.endswith("proj.weight") else 0.02
                nn.init.normal_(parameter, mean=0.0, std=std)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, passes: int = 1) -> Output:
        """Return the next-token loss, or the logits where there are no targets.

        Args:
            tokens: (B, T) int64, T at most ``config.context``.
            targets: (B, T) int64, or None.
            passes: What the loss is divided by.
        """
        if tokens.shape[1] > self.config.context:
            raise UserError(
                f"a sequence of {tokens.shape[1]} tokens is longer than the model's context, "
                f"{self.config.context}"
            )
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)  # (B, T, C)
        x = F.dropout(x, self.config.dropout, self.training)
        branch = None
        for block in self.blocks:
            x, branch = block(x, branch)
        _, h = add_norm(x, branch, self.ln_f)
        head = self.wte if self.config.tied_head else self.head
        if targets is None:
            return Output(None, F.linear(h, head.weight))  # (B, T, V)
        return Output(linear_cross_entropy(h, head.weight, targets, passes), None)

    @property
    def vocab_size(self) -> int:
        """Token ids that the model knows; the trainer holds the data against it."""
        return self.config.vocab_size

    def n_params(self) -> int:
        """Count all parameters, the tied embedding once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def n_active_params(self) -> int:
        """Count the parameters that one token passes through: all of them in a dense model."""
        return self.n_params()

    def flops_per_token(self, context: int) -> float:
        """Return the FLOPs of forward and backward for one token (PaLM, appendix B).

        6 for each parameter in a product (position embeddings are only added, token embeddings
        only looked up unless they are the head, too), and 12 * C * T a layer for the two products
        of attention, without a discount for causality.
        """
        in_products = self.n_params() - self.wpe.weight.numel()
        if not self.config.tied_head:
            in_products -= self.wte.weight.numel()
        return 6.0 * in_products + 12.0 * self.config.n_layer * self.config.n_embd * context
