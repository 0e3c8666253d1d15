"""An optimizer's real state after a step, beside the analytic figure."""

from collections.abc import Sequence
from typing import Any

import torch

from nanogpt.runtime import Runtime, seeded
from powerstep_repro import optim
from powerstep_repro.config import compose, groups_label
from powerstep_repro.models import build
from powerstep_repro.models.count import check_kinds, mean_bytes_per_param

_TOKENS = 32  # sequence length of the one step; the state does not depend on it
_MIB = 2**20


def measure(
    model_name: str, optimizer_name: str, profile: str = "tiny", overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Take one step of an optimizer on a model of random tokens, and weigh its state.

    Args:
        model_name: A name in ``conf/model``.
        optimizer_name: A name in ``conf/optimizer``.
        profile: Which shape of the model.
        overrides: ``groups.KIND.KEY=VALUE``.

    Returns:
        ``model, optimizer, groups`` (in words), ``n_params, bytes_per_param`` (analytic),
        ``measured_bytes_per_param``, ``difference`` (relative), ``state_mb`` (MiB); on a GPU
        ``step_peak_mb``, the most memory that the optimizer's step added to what was allocated
        before it, state included.
    """
    given = [f"model={model_name}", f"optimizer={optimizer_name}", f"profile={profile}"]
    config = compose([*given, *overrides])
    check_kinds(config)
    with Runtime(precision="fp32") as runtime:
        seeded(config["seed"])
        model = runtime.place(build(config["model"]))
        optimizer = optim.create_for_model(
            model=model, rules=config["groups"], lr=config["lr"], **config["optimizer"]
        )
        vocabulary = config["model"]["vocab_size"]
        tokens = torch.randint(vocabulary, (1, _TOKENS), device=runtime.device)
        model(tokens, tokens).loss.backward()
        cuda = runtime.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        optimizer.step()
        measured = optim.state_bytes(optimizer) / model.n_params()
        analytic = mean_bytes_per_param(config)
        row = {
            "model": model_name,
            "optimizer": optimizer_name,
            "groups": groups_label(config).removeprefix(", "),
            "n_params": model.n_params(),
            "bytes_per_param": analytic,
            "measured_bytes_per_param": measured,
            "difference": measured / analytic - 1,
            "state_mb": optim.state_bytes(optimizer) / _MIB,
        }
        if cuda:
            row["step_peak_mb"] = (torch.cuda.max_memory_allocated() - before) / _MIB
        return row
