"""Mixtures of experts: the load-balancing loss and the experts' computation, for every family."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def load_balancing_loss(router_logits: Sequence[Tensor], top_k: int) -> Tensor:
    """The auxiliary loss of Switch Transformers (Fedus et al. 2022, equations 4 to 6), for top-k.

    A layer's term is E Σ_i f_i P_i over its E experts, where f_i is the share of all assignments
    (k a token) that expert i gets, and P_i its mean router probability. Perfect balance gives 1,
    all tokens on the same k experts give at most E / k. The terms of the layers are added. The
    gradient flows through P alone. The shares are those of the tokens at hand (one micro-batch
    on one rank), not of the global batch.

    Args:
        router_logits: One tensor of shape (tokens, E) for every layer that has a router.
        top_k: Experts per token.

    Returns:
        A scalar in fp32.
    """
    total = torch.zeros((), device=router_logits[0].device)
    for logits in router_logits:
        probabilities = logits.float().softmax(dim=-1)
        chosen = probabilities.detach().topk(top_k, dim=-1).indices
        shares = torch.zeros_like(probabilities).scatter_(1, chosen, 1.0 / top_k).mean(dim=0)
        total = total + logits.shape[-1] * (shares.detach() * probabilities.mean(dim=0)).sum()
    return total


def experts_forward(
    experts: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Run every token through its experts; the same result as transformers' own expert layer.

    That one's plain loop costs E gradients of the size of all E experts in the backward pass, and
    its grouped one stays in fp32 under autocast. Here rows are sorted by expert, each expert gets
    one contiguous block, and no sum depends on the order in which a GPU finishes: gathers touch
    each row once, and a token's k outputs are added in a fixed order.

    Args:
        experts: Holds ``gate_up_proj`` (E, 2I, H), ``down_proj`` (E, H, I) and ``act_fn``.
        hidden_states: (tokens, H).
        top_k_index: The experts of each token, (tokens, k), int64.
        top_k_weights: Their weights, (tokens, k).

    Returns:
        (tokens, H) in the dtype of ``hidden_states``.
    """
    n_experts = experts.gate_up_proj.shape[0]
    top_k = top_k_index.shape[-1]
    order = top_k_index.flatten().argsort(stable=True)
    loads = torch.zeros(
        (top_k_index.shape[0], n_experts), dtype=torch.int32, device=top_k_index.device
    )
    loads = loads.scatter_(1, top_k_index, 1).sum(dim=0, dtype=torch.int32)

    rows = hidden_states.repeat_interleave(top_k, dim=0).index_select(0, order)
    gate, up = _grouped_linear(rows, experts.gate_up_proj, loads).chunk(2, dim=-1)
    rows = _grouped_linear(experts.act_fn(gate) * up, experts.down_proj, loads)
    rows = rows.index_select(0, order.argsort()) * top_k_weights.reshape(-1, 1)
    return rows.view(-1, top_k, rows.shape[-1]).sum(dim=1).to(hidden_states.dtype)


def _grouped_linear(rows: Tensor, weights: Tensor, loads: Tensor) -> Tensor:
    """Multiply consecutive blocks of rows, ``loads`` long, by one weight matrix each.

    rows (R, in), weights (E, out, in), loads (E,) with sum R -> (R, out), in autocast's dtype.
    """
    device = rows.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
    rows, weights = rows.to(dtype), weights.to(dtype)
    if _has_grouped_kernel(rows, weights):
        ends = loads.cumsum(dim=0, dtype=torch.int32)
        return F.grouped_mm(rows, weights.transpose(1, 2), offs=ends)
    return _looped_linear(rows, weights, loads)


def _has_grouped_kernel(rows: Tensor, weights: Tensor) -> bool:
    if not hasattr(F, "grouped_mm"):  # torch below 2.10
        return False
    if rows.device.type == "cpu":
        # Compiled, it takes bf16 alone.
        return rows.dtype == torch.bfloat16 or not torch.compiler.is_compiling()
    # Rows must start at multiples of 16 bytes.
    aligned = weights.shape[1] % 8 == 0 and weights.shape[2] % 8 == 0
    return rows.dtype == torch.bfloat16 and rows.device.type == "cuda" and aligned


@torch.compiler.disable  # block lengths change with every batch: each would compile anew
def _looped_linear(rows: Tensor, weights: Tensor, loads: Tensor) -> Tensor:
    # unbind, not indexing: its backward fills one gradient instead of E of them.
    blocks = zip(rows.split(loads.tolist()), weights.unbind(0), strict=True)
    return torch.cat([F.linear(block, weight) for block, weight in blocks])
