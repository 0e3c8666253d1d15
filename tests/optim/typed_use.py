"""What a script with types does with the library: mypy reads this, nothing runs it."""

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

from powerstep_repro.optim import (
    AdamWInt8,
    MultiOptimizer,
    PowerStep,
    PowerStepInt8,
    bytes_per_param,
    create,
    create_for_model,
    groups_by_kind,
    names,
    parameter_kinds,
    state_bytes,
)

model = nn.Linear(4, 4)


def loss_again() -> Tensor:
    """Return the loss, with gradients."""
    loss: Tensor = model(torch.ones(4)).sum()
    loss.backward()
    return loss


one = PowerStep(model.parameters(), lr=6e-4, gamma=0.9, beta=0.1, weight_decay=0.1)
one.step()
one.step(loss_again)
one.step(grad_factor=0.5)
one.step(grad_factor=torch.ones(()))
two = PowerStepInt8(model.named_parameters(), lr=torch.tensor(1e-3), code="linear")
three = AdamWInt8([{"params": [model.weight], "quantized": False}], betas=(0.9, 0.95))
named = create("adamw", model.parameters(), lr=1e-3)
assert_type(named, torch.optim.Optimizer)
assert_type(names(), list[str])
assert_type(state_bytes(named), int)
assert_type(bytes_per_param("powerstep_int8", block_size=64), float)
assert_type(parameter_kinds(model), dict[str, str])

parts = groups_by_kind(model, "gains", weight_decay=0.1)
both = MultiOptimizer(
    {"rest": PowerStepInt8(parts["rest"]), "gains": torch.optim.AdamW(parts["gains"])}
)
both.step(loss_again)
several = create_for_model("powerstep_int8", model, {"gains": {"name": "adamw", "lr": 1e-3}})
schedule = torch.optim.lr_scheduler.LambdaLR(several, lambda step: 1.0)
optimizers: list[torch.optim.Optimizer] = [one, two, three, named, both, several]
