"""Sharded parameters (DTensor): each rank steps its own shard, which is all the rules need."""

import pytest
import torch
import torch.distributed as dist

from powerstep_repro.optim import create, names, state_bytes

if not dist.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


@pytest.fixture(scope="module")
def mesh():
    """Return a mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("implementation", ["reference", "foreach"])
@pytest.mark.parametrize("name", [name for name in names() if name != "adamw"])
def test_a_sharded_parameter_is_stepped_like_a_plain_one(name, implementation, mesh):
    values = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    plain = torch.nn.Parameter(values.clone())
    sharded = torch.nn.Parameter(distribute_tensor(values.clone(), mesh, [Shard(0)]))
    pair = [create(name, [p], lr=0.1, implementation=implementation) for p in (plain, sharded)]
    for step in range(3):
        gradient = torch.randn(6, 50, generator=torch.Generator().manual_seed(step))
        plain.grad, sharded.grad = gradient, distribute_tensor(gradient, mesh, [Shard(0)])
        for optimizer in pair:
            optimizer.step()
    assert isinstance(sharded.data, DTensor)
    assert torch.equal(sharded.to_local(), plain)
    assert state_bytes(pair[0]) == state_bytes(pair[1])
    momentum = pair[1].state[sharded].get("momentum")
    assert momentum is None or isinstance(momentum, DTensor)  # so that checkpoints can reshard it
    resumed = create(name, [sharded])
    resumed.load_state_dict(pair[1].state_dict())
    assert resumed.state[sharded].keys() == pair[1].state[sharded].keys()
