"""Optimizer-state memory from shapes alone: the paper's counting, and that of whole models."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from omegaconf import OmegaConf

from powerstep_repro.config import CONF, compose, groups_label
from powerstep_repro.models.count import Count, check_kinds, count, mean_bytes_per_param
from powerstep_repro.paper import MODELS, NUMBERS, TABLES, value
from powerstep_repro.paper import table as paper_table

MIB = 2**20
#: Devices behind every number of the paper's memory table.
PAPER_DEVICES = 256
#: Bytes of an fp32 copy of a parameter.
MASTER = 4.0

EXPLANATION = """\
The paper's "MB" is MiB of optimizer state, averaged over its 256 devices. For a mixture of experts
it counts the routed experts' parameters alone; for Qwen3-32B all parameters, with the norms held
once by each of the 8 tensor-parallel ranks. "Whole model" counts every parameter once, and is what
an evenly sharded state takes. The paper's "about 8x" is {ratio:.2f}, {masters:.2f} if the fp32
master copy of bf16 weights is counted, and {int8:.2f} against an 8-bit AdamW."""


def state_bytes_per_param() -> dict[str, float]:
    """Bytes of state a parameter for the memory table's two optimizers, without torch.

    AdamW: two fp32 moments. PowerStep int8: a code, and a share of its block's fp32 scale.
    """
    block = OmegaConf.load(CONF / "optimizer" / "powerstep_int8.yaml").block_size
    return {"adamw": 8.0, "powerstep_int8": 1.0 + 4.0 / block}


def bytes_per_param(optimizer: str) -> float:
    """Bytes of state a parameter for any optimizer of the registry, at its config's settings."""
    known = state_bytes_per_param()
    if optimizer in known:
        return known[optimizer]
    from powerstep_repro import optim

    settings = OmegaConf.to_container(OmegaConf.load(CONF / "optimizer" / f"{optimizer}.yaml"))
    settings.pop("name")
    return optim.bytes_per_param(optimizer, **settings)


def paper_counts(model: str) -> Count:
    """Count the parameters of a model as the paper has it, whatever the profile."""
    return count(OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{model}.yaml")))


@lru_cache(maxsize=64)
def full_size(model: str) -> int:
    """Return the parameters of a model of the paper."""
    return paper_counts(model).n_params


def scaled_to(config: Mapping[str, Any]) -> int | None:
    """Return a config's parameters where its model is scaled; None at the paper's size."""
    model = config["model"]["name"]
    if model not in MODELS:
        return None
    ours = count(config["model"]).n_params
    return None if ours == full_size(model) else ours


def counted_by_the_paper(model: str) -> tuple[int, int]:
    """Return the parameters whose state the paper's number counts, and those of the whole model.

    Found by matching its eight numbers: of a mixture of experts the routed experts alone; of a
    dense model all, its one-dimensional parameters held once by every tensor-parallel rank.
    """
    counts = paper_counts(model)
    if counts.routed_expert_params:
        return counts.routed_expert_params, counts.n_params
    ranks = int(value("parallelism", model, "tp")) if model in MODELS else 1
    return counts.n_params + (ranks - 1) * counts.one_dim_params, counts.n_params


def rows(
    models: Iterable[str] = tuple(dict.fromkeys(cell.model for cell in paper_table("memory"))),
    optimizers: Iterable[str] = TABLES["memory"].columns,
    devices: int = PAPER_DEVICES,
    overrides: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Compute one row a model and optimizer. No torch for the memory table's own optimizers.

    Args:
        models: Names in ``conf/model``; as default the memory table's four.
        optimizers: Names in ``conf/optimizer``; as default the memory table's two.
        devices: Over how many devices the state is averaged.
        overrides: ``groups.KIND.KEY=VALUE``, for every optimizer alike.

    Returns:
        Dictionaries with ``model, optimizer, groups`` (in words), ``devices, n_params,
        routed_expert_params, counted_params, bytes_per_param``; ``paper_mb`` (None where the paper
        prints none), ``paper_counting_mb`` (None with ``groups``), ``whole_model_mb`` and
        ``with_masters_mb`` (whole model, an fp32 master copy included), all in MiB a device;
        ``ratio`` and ``ratio_with_masters``, AdamW's state over this one's.
    """
    out = []
    adamw = state_bytes_per_param()["adamw"]
    printed = {(n.model, n.column): n.value for n in NUMBERS if n.table == "memory"}
    optimizers = list(optimizers)
    sizes = {name: bytes_per_param(name) for name in optimizers}
    for model in models:
        counted, whole = counted_by_the_paper(model)
        for name in optimizers:
            size, words = sizes[name], ""
            here = devices == PAPER_DEVICES and not overrides
            if overrides:
                given = [f"model={model}", f"optimizer={name}", "profile=paper", *overrides]
                config = compose(given)
                check_kinds(config)
                size, words = mean_bytes_per_param(config), groups_label(config)
            out.append(
                {
                    "model": model,
                    "optimizer": name,
                    "groups": words.removeprefix(", "),
                    "devices": devices,
                    "n_params": whole,
                    "routed_expert_params": paper_counts(model).routed_expert_params,
                    "counted_params": counted,
                    "bytes_per_param": size,
                    "paper_mb": printed.get((model, name)) if here else None,
                    "paper_counting_mb": None if overrides else size * counted / devices / MIB,
                    "whole_model_mb": size * whole / devices / MIB,
                    "with_masters_mb": (size + MASTER) * whole / devices / MIB,
                    "ratio": adamw / size,
                    "ratio_with_masters": (adamw + MASTER) / (size + MASTER),
                }
            )
    return out


def explanation() -> str:
    """Say in words why the table's columns differ."""
    size = state_bytes_per_param()
    adamw, ours = size["adamw"], size["powerstep_int8"]
    masters = (adamw + MASTER) / (ours + MASTER)
    return EXPLANATION.format(ratio=adamw / ours, masters=masters, int8=2 * ours / ours)
