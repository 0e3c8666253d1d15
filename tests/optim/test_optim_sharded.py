"""Sharded parameters (DTensor): every layout has the numbers of one process, and its checkpoints.

Guards 8-bit state that comes back from a distributed checkpoint as another rank's, replicas that
drift apart under a partial gradient, and a block that two devices would scale differently. What is
checked is in ``sharded_worker.py``; a world's ranks run all of it in one process group.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from powerstep_repro.optim import create, names

if not dist.is_available():
    pytest.skip("torch without distributed", allow_module_level=True)

import sharded_worker
from torch.distributed.tensor import DTensor

# A world is started once for all of its checks, so they stay in one process of the tests'.
pytestmark = pytest.mark.xdist_group("ranks")

# A rule with and without a list form, one and two moments, each 8-bit code; "slow" has the rest.
CORE = ["adamw_int8", "powerstep", "powerstep_int8", "powerstep_int8_released", "stacey"]
CORE += [sharded_worker.HYBRID]
EVERY = [*names(), sharded_worker.HYBRID]


def run_world(folder: Path, world: int, chosen: list[str]) -> dict[str, str]:
    """Run a world's ranks; return what each check found wrong, "" for nothing."""
    command = [sys.executable, sharded_worker.__file__, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = []
    for rank in range(world):
        with (folder / f"output-{world}-{rank}.txt").open("w") as output:
            ranks.append(
                subprocess.Popen(
                    [*command, str(rank), str(world), *chosen],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
            )
    try:
        for rank in ranks:
            rank.wait(timeout=2400)  # four ranks on two cores take minutes
    finally:
        for rank in ranks:
            rank.kill()
    found: dict[str, str] = {}
    for rank in range(world):
        told = folder / f"found-{world}-{rank}.json"
        assert told.exists(), (folder / f"output-{world}-{rank}.txt").read_text()[-3000:]
        for title, wrong in json.loads(told.read_text()).items():
            found[title] = found.get(title) or wrong
    return found


def titles(world: int, chosen: list[str]) -> list[str]:
    result = [f"{layout} {name}" for name in chosen for layout in sharded_worker.LAYOUTS[world]]
    alone = [name for name in chosen if name != sharded_worker.HYBRID]
    result += [f"{kind} {name}" for name in alone for kind in ("partial", "factor")]
    result += [f"refusal {name}" for name in chosen if "int8" in name]
    if world == 4:
        result += [f"from 2: {k} {name}" for name in chosen for k in sharded_worker.LAYOUTS[2]]
    return result


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Two ranks' findings for a few optimizers, and the folder of their checkpoints."""
    folder = tmp_path_factory.mktemp("two_ranks")
    return folder, run_world(folder, 2, CORE)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Two and four ranks' findings for every optimizer, and the folder of their checkpoints."""
    folder = tmp_path_factory.mktemp("four_ranks")
    return folder, {world: run_world(folder, world, EVERY) for world in (2, 4)}


@pytest.mark.parametrize("title", titles(2, CORE))
def test_two_ranks(title, core):
    assert core[1][title] == ""


@pytest.mark.parametrize("layout", sharded_worker.LAYOUTS[2])
@pytest.mark.parametrize("name", CORE)
def test_one_process_loads_what_two_ranks_saved(name, layout, core):
    sharded_worker.check_load(name, layout, core[0], 2)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_every_optimizer(world, everything):
    found = everything[1][world]
    assert sorted(found) == sorted(titles(world, EVERY))
    assert "\n".join(wrong for wrong in found.values() if wrong) == ""


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", EVERY)
def test_one_process_loads_what_many_saved(name, world, everything):
    for layout in sharded_worker.LAYOUTS[world]:
        sharded_worker.check_load(name, layout, everything[0], world)


@pytest.fixture(scope="module")
def mesh():
    """Return a mesh of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["powerstep", "powerstep_int8"])
def test_state_of_one_process_and_of_a_shard_are_not_mistaken(name, mesh):
    """torch's own functions deal a whole state out; a bare load would keep it as it is."""
    from torch.distributed.tensor import Shard, distribute_tensor

    plain = torch.nn.Parameter(torch.ones(6, 128))
    sharded = torch.nn.Parameter(distribute_tensor(torch.ones(6, 128), mesh, [Shard(0)]))
    one, many = (create(name, [p]) for p in (plain, sharded))
    for p, o in ((plain, one), (sharded, many)):
        p.grad = torch.ones_like(p)
        o.step()
    assert all(isinstance(v, DTensor) for k, v in many.state[sharded].items() if k != "step")
    for o, other in ((one, many), (many, one)):
        with pytest.raises(ValueError, match=r"does not fit .* sharded torch"):
            o.load_state_dict(other.state_dict())
