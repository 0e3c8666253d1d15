"""Kinds of a model's parameters, and parameter groups by kind, for a rule of its own each."""

import difflib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from powerstep_repro.optim.multi import MultiOptimizer
from powerstep_repro.optim.registry import create

#: Every kind that a rule can be given to. The two parts of ``embeddings`` go before the whole.
KINDS = ("token_embeddings", "positions", "embeddings", "head", "gains", "matrices")
_WHOLE = {"token_embeddings": "embeddings", "positions": "embeddings"}


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """Say of each trainable parameter what it is.

    - ``token_embeddings``: the table that token ids are looked up in, shared with the output
      head or not. It is what ``get_input_embeddings`` returns where the model has that (those of
      ``transformers`` do), else the first ``nn.Embedding`` with the model's ``vocab_size`` rows,
      else the first ``nn.Embedding``.
    - ``positions``: all other ``nn.Embedding`` weights.
    - ``head``: the weight that maps to the vocabulary, if it is not the embedding itself. It is
      what ``get_output_embeddings`` returns, else the last ``nn.Linear`` outside the blocks (an
      ``nn.ModuleList``) with an output for every row of the token embedding.
    - ``gains``: what has fewer than two dimensions, biases included.
    - ``matrices``: the rest, experts of three dimensions included.

    Args:
        model: Any module; sharded (FSDP2), wrapped or compiled, too.

    Returns:
        The kind by the parameter's name, in the model's order, each tied parameter once.
    """
    table = _token_embedding(model)
    kinds = {id(m.weight): "positions" for m in model.modules() if isinstance(m, nn.Embedding)}
    if (head := _head(model, table)) is not None:
        kinds[id(head.weight)] = "head"
    if table is not None:
        kinds[id(table.weight)] = "token_embeddings"  # last: a tied head is the embedding
    return {
        name: kinds.get(id(p), "gains" if p.dim() < 2 else "matrices")
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def _own(model: nn.Module, method: str) -> nn.Module | None:
    """What the outermost module that has ``method`` returns; None if none has it or it has none."""
    for module in model.modules():
        if callable(get := getattr(module, method, None)):
            try:
                found = get()
            except NotImplementedError:  # transformers' answer of a model without one
                continue
            return found if isinstance(getattr(found, "weight", None), Tensor) else None
    return None


def _token_embedding(model: nn.Module) -> nn.Module | None:
    if (found := _own(model, "get_input_embeddings")) is not None:
        return found
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    owners = (o for m in model.modules() for o in (m, getattr(m, "config", None)))
    sizes = (getattr(owner, "vocab_size", None) for owner in owners)
    rows = next((size for size in sizes if size is not None), None)
    return next((m for m in tables if m.num_embeddings == rows), tables[0] if tables else None)


def _head(model: nn.Module, table: nn.Module | None) -> nn.Module | None:
    if (found := _own(model, "get_output_embeddings")) is not None:
        return found
    if table is None:
        return None
    repeated = {
        id(inner)
        for blocks in model.modules()
        if isinstance(blocks, nn.ModuleList)
        for inner in blocks.modules()
    }
    assert isinstance(table.weight, Tensor)
    vocabulary = table.weight.shape[0]
    heads = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and module.out_features == vocabulary
        and id(module) not in repeated
    ]
    return heads[-1] if heads else None


def groups_by_kind(
    model: nn.Module,
    *kinds: str,
    weight_decay: float = 0.0,
    weight_decay_on: str = "matrices",
) -> dict[str, list[dict[str, Any]]]:
    """Split a model's trainable parameters into groups by kind, each with and without decay.

    For a rule of its own for some kinds::

        parts = groups_by_kind(model, "embeddings", "gains", weight_decay=0.1)
        optimizer = MultiOptimizer({
            "powerstep": PowerStepInt8(parts["rest"], lr=6e-4),
            "adamw": torch.optim.AdamW(parts["embeddings"] + parts["gains"], lr=2.4e-3),
        })

    Args:
        model: Any module; see :func:`parameter_kinds`.
        *kinds: Those to be set apart, of ``KINDS``. Of ``embeddings`` and a part of it
            (``token_embeddings``, ``positions``) the part counts.
        weight_decay: The decay of the decayed groups.
        weight_decay_on: ``matrices`` decays tensors of two and more dimensions, ``all``
            everything.

    Returns:
        Groups for an optimizer by kind, and under ``rest`` those of all other parameters. A kind
        that the model does not have comes with no group. Names travel with the parameters, whose
        order is the model's; a tied parameter appears once, a frozen one not at all.

    Raises:
        ValueError: An unknown kind, or an unknown ``weight_decay_on``.
    """
    for kind in kinds:
        if kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, n=1)
            hint = f" did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown kind {kind!r};{hint} allowed: {', '.join(KINDS)}")
    if weight_decay_on not in ("matrices", "all"):
        raise ValueError(f"weight_decay_on must be matrices or all, not {weight_decay_on!r}")
    parts: dict[str, list[tuple[str, Tensor]]] = {kind: [] for kind in ("rest", *kinds)}
    parameters = dict(model.named_parameters())
    for name, kind in parameter_kinds(model).items():
        chosen = next((k for k in (kind, _WHOLE.get(kind)) if k in kinds), "rest")
        parts[chosen].append((name, parameters[name]))
    return {kind: _by_decay(named, weight_decay, weight_decay_on) for kind, named in parts.items()}


def _by_decay(named: list[tuple[str, Tensor]], weight_decay: float, on: str) -> list[dict]:
    decayed = [(name, p) for name, p in named if p.dim() >= 2]
    others = [(name, p) for name, p in named if p.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": weight_decay if on == "all" else 0.0},
    ]
    return [group for group in groups if group["params"]]


def create_for_model(
    name: str,
    model: nn.Module,
    rules: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    weight_decay: float = 0.0,
    weight_decay_on: str = "matrices",
    **hyperparameters: Any,
) -> torch.optim.Optimizer:
    """Build a model's optimizer by name, with another rule for some kinds of its parameters.

    ::

        adamw = {"name": "adamw", "lr": 2.4e-3, "betas": (0.9, 0.95)}
        optimizer = create_for_model(
            "powerstep_int8", model, {"embeddings": adamw, "gains": adamw}, lr=6e-4
        )

    Args:
        name: The rule of all parameters that ``rules`` does not name, as for :func:`create`.
        model: The model, after it was placed.
        rules: By kind, of ``KINDS``: a rule's ``name`` and hyperparameters. Without ``lr``,
            ``weight_decay`` or ``implementation`` of its own it has those given for the rest.
        weight_decay: Decoupled weight decay.
        weight_decay_on: As for :func:`groups_by_kind`.
        **hyperparameters: Of the rule ``name``.

    Returns:
        The optimizer itself where there are no ``rules``, else a :class:`MultiOptimizer` with a
        member for each kind, and ``rest``. Its groups carry the highest learning rate of their
        rule as ``initial_lr``, as torch's schedulers would.

    Raises:
        ValueError: As :func:`create`; an unknown kind; or one of which the model has no parameter.
    """
    rules = rules or {}
    parts = groups_by_kind(
        model, *rules, weight_decay=weight_decay, weight_decay_on=weight_decay_on
    )
    if not rules:
        return create(name, parts["rest"], weight_decay=weight_decay, **hyperparameters)
    shared: dict[str, Any] = {
        k: hyperparameters[k] for k in ("lr", "implementation") if k in hyperparameters
    }
    settings: dict[str, dict[str, Any]] = {"rest": {"name": name, **hyperparameters}}
    settings |= {kind: {**shared, **rule} for kind, rule in rules.items()}
    members = {}
    for kind, rule in settings.items():
        if not parts[kind]:
            if kind == "rest":
                continue
            raise ValueError(f"the model has no parameters of the kind {kind!r}{_why(kind)}")
        own = {"weight_decay": weight_decay, **rule}
        for group in parts[kind]:
            if group["weight_decay"]:
                group["weight_decay"] = own["weight_decay"]
        members[kind] = create(own.pop("name"), parts[kind], **own)
        for group in members[kind].param_groups:
            group["initial_lr"] = float(group["lr"])
    return MultiOptimizer(members)


def _why(kind: str) -> str:
    return ": its output head is the token embedding itself" if kind == "head" else ""
