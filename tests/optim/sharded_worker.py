"""One rank of the sharded optimizers' tests: every layout of a world in one process group.

    python sharded_worker.py FOLDER RANK WORLD NAME...

A check is a function; what it finds wrong is a line of ``FOLDER/found-WORLD-RANK.json``. Folders
``saved-WORLD-LAYOUT-NAME`` are distributed checkpoints for other worlds to load.
"""

import json
import re
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from powerstep_repro.optim import create, create_for_model

STEPS = 3
HYBRID = "hybrid"  # no optimizer's name: 8-bit PowerStep, and AdamW on what has one dimension
LAYOUTS = {2: ("fsdp", "tp", "uneven"), 4: ("fsdp", "tp", "fsdp_tp", "uneven")}


def build(layout: str) -> nn.Module:
    """Return the whole model. "uneven": rows that no world divides, and what no blocks divide."""
    torch.manual_seed(0)
    if layout.startswith("uneven"):
        # Rows of whole vectors: torch's CPU kernels round a tensor's last few powers otherwise.
        parts = {"a": nn.Linear(256, 5), "b": nn.Linear(96, 5, bias=False), "c": nn.Linear(128, 3)}
    else:
        parts = {"a": nn.Linear(128, 512, bias=False), "b": nn.Linear(512, 128, bias=False)}
        parts["n"] = nn.LayerNorm(512, bias=False)
    return nn.ModuleDict(parts)


def shard(model: nn.Module, layout: str) -> nn.Module:
    world = dist.get_world_size()
    if layout in ("fsdp", "uneven"):
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        for part in model.values():
            fully_shard(part, mesh=mesh)
    elif layout in ("tp", "fsdp_tp"):
        size = 2 if layout == "fsdp_tp" else world
        mesh = init_device_mesh("cpu", (world // size, size), mesh_dim_names=("dp", "tp"))
        plan = {"a": ColwiseParallel(), "b": RowwiseParallel(), "n": SequenceParallel()}
        parallelize_module(model, mesh["tp"], plan)
        if layout == "fsdp_tp":
            for part in model.values():
                fully_shard(part, mesh=mesh["dp"])
    return model


def optimizer(name: str, layout: str, model: nn.Module) -> torch.optim.Optimizer:
    codes = "int8" in name or name == HYBRID
    whole = {"whole_blocks": True} if codes and layout.startswith("uneven") else {}
    if name == HYBRID:
        rules = {"gains": {"name": "adamw", "lr": 2e-2}}
        return create_for_model("powerstep_int8", model, rules, lr=1e-2, weight_decay=0.1, **whole)
    return create(name, model.parameters(), lr=1e-2, weight_decay=0.1, **whole)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """Take a step with gradients that are the same in every layout."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        g = torch.randn(p.shape, generator=generator)
        sharded = isinstance(p, DTensor)
        p.grad = distribute_tensor(g, p.device_mesh, p.placements) if sharded else g
    optimizer.step()
    optimizer.zero_grad()


def trained(name: str, layout: str, *, whole: bool, steps: int = STEPS):
    model = build(layout)
    if not whole:
        shard(model, layout)
    result = model, optimizer(name, layout, model)
    for seed in range(steps):
        step(*result, seed)
    return result


def full(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def assert_same(one, other) -> None:
    """Parameters and states of two (model, optimizer), bit for bit, wherever they lie."""
    for p, q in zip(one[0].parameters(), other[0].parameters(), strict=True):
        assert torch.equal(full(p), full(q)), f"a parameter of shape {tuple(p.shape)}"
        left, right = one[1].state[p], other[1].state[q]
        assert left.keys() == right.keys()
        for key, value in left.items():
            assert value.shape == right[key].shape, key
            assert value.dtype == right[key].dtype, key
            assert torch.equal(full(value), full(right[key])), f"{key} of {tuple(p.shape)}"


def everything(pair) -> dict:
    return {"model": get_model_state_dict(pair[0]), "optim": get_optimizer_state_dict(*pair)}


def load(pair, folder: Path) -> None:
    states = everything(pair)
    dcp.load(states, checkpoint_id=folder, no_dist=not dist.is_initialized())
    set_model_state_dict(pair[0], states["model"])
    set_optimizer_state_dict(*pair, states["optim"])


def check_layout(name: str, layout: str, folder: Path) -> None:
    """A layout has the numbers of one process, and so has what it saved, loaded anywhere."""
    one = trained(name, layout, whole=True)
    many = trained(name, layout, whole=False)
    assert_same(many, one)
    saved = folder / f"saved-{dist.get_world_size()}-{layout}-{name}"
    dcp.save(everything(many), checkpoint_id=saved)
    whole = get_optimizer_state_dict(*many, options=StateDictOptions(full_state_dict=True))
    step(*one, STEPS)
    others = [k for k in LAYOUTS[dist.get_world_size()] if (k == "uneven") == (layout == "uneven")]
    for other in others:
        for before in (0, 1):  # with no state of its own yet, and with one to replace
            fresh = trained(name, other, whole=False, steps=before)
            load(fresh, saved)
            assert_same(fresh, many)
            step(*fresh, STEPS)
            assert_same(fresh, one)
    # As one process has it, and dealt out again.
    fresh = trained(name, layout, whole=False, steps=1)
    for parameter, p in many[0].named_parameters():
        for key, value in whole["state"][parameter].items():
            assert not isinstance(value, DTensor)
            assert torch.equal(value, full(many[1].state[p][key])), key
    set_model_state_dict(fresh[0], get_model_state_dict(many[0]))
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(*fresh, optim_state_dict=whole, options=options)
    assert_same(fresh, many)


def check_load(name: str, layout: str, folder: Path, world: int) -> None:
    """What ``world`` ranks saved is, loaded here, what one process has."""
    one = trained(name, layout, whole=True)
    here = trained(name, layout, whole=not dist.is_initialized(), steps=1)
    load(here, folder / f"saved-{world}-{layout}-{name}")
    assert_same(here, one)
    step(*here, STEPS)
    step(*one, STEPS)
    assert_same(here, one)


def check_partial(name: str) -> None:
    """A replicated parameter's gradient may be a sum whose parts the ranks hold."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.randn(8, 128, generator=torch.Generator().manual_seed(0))
    spread = nn.Parameter(distribute_tensor(torch.ones(128), mesh, [Replicate()]))
    plain = nn.Parameter(torch.ones(128))
    pair = [create(name, [p], lr=1e-2) for p in (spread, plain)]
    for _ in range(3):
        loss = torch.tanh(distribute_tensor(x, mesh, [Shard(0)]) * spread).sum()
        loss.full_tensor().backward()
        assert spread.grad.placements != spread.placements, "the gradient is no sum here"
        plain.grad = spread.grad.full_tensor()
        for o in pair:
            o.step()
            o.zero_grad()
    assert torch.equal(spread.to_local(), plain)


def check_factor(name: str) -> None:
    """A total norm under FSDP2 is a DTensor, and so is a factor made of it."""
    if name == "adamw":  # torch's own takes no factor
        return
    one, many = (trained(name, "fsdp", whole=whole, steps=1) for whole in (True, False))
    generator = torch.Generator().manual_seed(9)
    for p, q in zip(one[0].parameters(), many[0].parameters(), strict=True):
        p.grad = torch.randn(p.shape, generator=generator)
        q.grad = distribute_tensor(p.grad, q.device_mesh, q.placements)
    norm = torch.nn.utils.get_total_norm([q.grad for q in many[0].parameters()])
    factor = 1.0 / norm
    assert isinstance(factor, DTensor)
    many[1].step(grad_factor=factor)
    one[1].step(grad_factor=factor.full_tensor())
    assert_same(many, one)


def check_refusal(name: str) -> None:
    """A block that a shard would cut is refused, in the constructor, and what to do is said."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    cut = {
        (world * 64,): "whole_blocks=True",
        (6, 100): "whole_blocks=True",
        (2, world * 64): "block_size",
    }
    for shape, advice in cut.items():
        placement = Shard(len(shape) - 1)
        p = nn.Parameter(distribute_tensor(torch.ones(shape), mesh, [placement]))
        sentence = f"{re.escape(str(shape))}.* as a shard would cut a block; .*{advice}"
        with pytest.raises(ValueError, match=sentence):
            create(name, [p])
        if len(shape) == 1:
            create(name, [p], whole_blocks=True)
    # What a world happens not to cut needs no flag: 128 rows of 100 on two devices.
    rows = nn.Parameter(distribute_tensor(torch.ones(world * 32, 100), mesh, [Shard(0)]))
    rows.grad = distribute_tensor(torch.ones(world * 32, 100), mesh, [Shard(0)])
    o = create(name, [rows])
    o.step()
    scales = next(v for k, v in o.state[rows].items() if k.endswith("_scales"))
    assert scales.shape == (world * 25,)
    assert scales.to_local().shape == (25,)


def main(folder: Path, rank: int, world: int, chosen: list[str]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store-{world}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found: dict[str, str] = {}

    def run(title, check, *args):
        start = time.perf_counter()
        try:
            check(*args)
            found[title] = ""
        except BaseException:  # a CheckpointException is no Exception
            found[title] = traceback.format_exc()
        print(f"{title} {time.perf_counter() - start:.1f} s", flush=True)

    for name in chosen:
        for layout in LAYOUTS[world]:
            run(f"{layout} {name}", check_layout, name, layout, folder)
        if name != HYBRID:
            run(f"partial {name}", check_partial, name)
            run(f"factor {name}", check_factor, name)
        if "int8" in name:
            run(f"refusal {name}", check_refusal, name)
        if world == 4:
            for layout in LAYOUTS[2]:
                run(f"from 2: {layout} {name}", check_load, name, layout, folder, 2)
    (folder / f"found-{world}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
