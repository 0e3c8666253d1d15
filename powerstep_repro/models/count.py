"""Parameters of every family in closed form, from its config alone. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from powerstep_repro.errors import UserError
from powerstep_repro.models.architecture import check

#: The parts of the kind ``embeddings``.
EMBEDDINGS = ("token_embeddings", "positions")


@dataclass(frozen=True)
class Count:
    """Numbers of parameters; a tied embedding counts once.

    ``routed_expert_params`` are those of the experts among which a router chooses (a shared
    expert is none), ``one_dim_params`` those of the norms, ``n_active_params`` those that one
    token passes through.
    """

    n_params: int
    routed_expert_params: int
    one_dim_params: int
    n_active_params: int


def count(model: Mapping[str, Any]) -> Count:
    """Count the parameters of the model that a config's ``model`` section describes.

    Args:
        model: The ``model`` section of a config.

    Returns:
        The counts, equal to those of the module that ``build`` makes.

    Raises:
        UserError: as ``architecture.check``.
    """
    check(model)
    matrices, one_dim, routed = _COUNTERS[model["family"]](model)
    idle = routed - routed * model["experts_per_token"] // model["experts"] if routed else 0
    total = matrices + one_dim + routed
    return Count(total, routed, one_dim, total - idle)


def count_by_kind(model: Mapping[str, Any]) -> dict[str, int]:
    """Count the parameters of each kind that a rule of its own can be given to (``groups``).

    Args:
        model: The ``model`` section of a config.

    Returns:
        Numbers of parameters by kind, as ``powerstep_repro.optim.parameter_kinds`` tells them
        apart; 0 for a kind that the model does not have.
    """
    counts = count(model)
    table = model["vocab_size"] * model["hidden"]
    tied = model.get("tied_head" if model["family"] == "gpt2" else "tied", True)
    kinds = {
        "token_embeddings": table,
        "positions": model["context"] * model["hidden"] if model["family"] == "gpt2" else 0,
        "head": 0 if tied else table,
        "gains": counts.one_dim_params,
    }
    return kinds | {"matrices": counts.n_params - sum(kinds.values())}


def check_kinds(config: Mapping[str, Any]) -> None:
    """Raise unless the model has parameters of every kind that ``groups`` gives a rule to.

    Args:
        config: A whole config.

    Raises:
        UserError: names the key and the kinds that the model has.
    """
    counts = count_by_kind({**config["model"], "context": config["context"]})
    counts["embeddings"] = sum(counts[kind] for kind in EMBEDDINGS if kind not in config["groups"])
    for kind in config["groups"]:
        if not counts[kind]:
            has = ", ".join(k for k, n in counts.items() if n)
            tied = "; its output head is the token embedding" if not counts["head"] else ""
            raise UserError(
                f"groups.{kind}: {config['model']['name']} has no parameters of this kind{tied}; "
                f"it has {has}"
            )


def mean_bytes_per_param(config: Mapping[str, Any]) -> float:
    """Bytes of state a parameter of a config's model, each kind under its own rule (``groups``)."""
    from powerstep_repro import optim

    rules, total = config["groups"], 0.0
    counts = count_by_kind({**config["model"], "context": config["context"]})
    for kind, number in counts.items():
        whole = "embeddings" if kind in EMBEDDINGS else kind
        rule = rules.get(kind) or rules.get(whole) or config["optimizer"]
        total += number * optim.bytes_per_param(**rule)
    return total / sum(counts.values())


# Each counter returns (parameters of matrices outside routed experts, 1-D, routed experts).


def _gpt2(m: Mapping[str, Any]) -> tuple[int, int, int]:
    hidden = m["hidden"]
    tables = m["vocab_size"] * (1 if m.get("tied_head", True) else 2) + m["context"]
    blocks = m["layers"] * (4 * hidden * hidden + 2 * hidden * 4 * hidden)
    return tables * hidden + blocks, (2 * m["layers"] + 1) * hidden, 0


def _embeddings(m: Mapping[str, Any]) -> int:
    return m["vocab_size"] * m["hidden"] * (1 if m["tied"] else 2)


def _grouped_attention(m: Mapping[str, Any]) -> tuple[int, int]:
    """Queries, keys, values and output without bias, a norm each on queries and keys."""
    projections = m["hidden"] * m["head_dim"] * 2 * (m["heads"] + m["kv_heads"])
    return projections, 2 * m["head_dim"]


def _latent_attention(m: Mapping[str, Any]) -> tuple[int, int]:
    """Multi-head latent attention without a query rank (DeepSeek-V2-Lite)."""
    hidden, heads = m["hidden"], m["heads"]
    query = hidden * heads * (m["nope_dim"] + m["rope_dim"])
    down = hidden * (m["kv_rank"] + m["rope_dim"])
    up = m["kv_rank"] * heads * (m["nope_dim"] + m["v_dim"])
    return query + down + up + heads * m["v_dim"] * hidden, m["kv_rank"]


def _gated(m: Mapping[str, Any], width: int) -> int:
    """A gated feed-forward layer: gate, up and down."""
    return 3 * m["hidden"] * width


def _qwen3(m: Mapping[str, Any]) -> tuple[int, int, int]:
    attention, norms = _grouped_attention(m)
    matrices = _embeddings(m) + m["layers"] * (attention + _gated(m, m["ffn"]))
    return matrices, m["layers"] * (norms + 2 * m["hidden"]) + m["hidden"], 0


def _qwen3_moe(m: Mapping[str, Any]) -> tuple[int, int, int]:
    attention, norms = _grouped_attention(m)
    matrices = _embeddings(m) + m["layers"] * (attention + m["experts"] * m["hidden"])
    one_dim = m["layers"] * (norms + 2 * m["hidden"]) + m["hidden"]
    return matrices, one_dim, m["layers"] * m["experts"] * _gated(m, m["expert_ffn"])


def _deepseek_v2(m: Mapping[str, Any]) -> tuple[int, int, int]:
    attention, norms = _latent_attention(m)
    moe_layers = m["layers"] - m["dense_layers"]
    shared = _gated(m, m["shared_experts"] * m["expert_ffn"])
    matrices = (
        _embeddings(m)
        + m["layers"] * attention
        + m["dense_layers"] * _gated(m, m["ffn"])
        + moe_layers * (m["experts"] * m["hidden"] + shared)
    )
    one_dim = m["layers"] * (norms + 2 * m["hidden"]) + m["hidden"]
    return matrices, one_dim, moe_layers * m["experts"] * _gated(m, m["expert_ffn"])


_COUNTERS = {
    "gpt2": _gpt2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek_v2,
}
