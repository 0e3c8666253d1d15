"""Fused steps in an optimizer's life: groups, schedules, checkpoints, moving addresses, graphs.

Guards: one launch for a group; tables that follow their tensors; learning rates as tensors;
states that pass between implementations; no parameter-sized memory, no recompilation, CUDA graphs.
"""

import copy
import math
import weakref

import pytest
import torch
from fused_kit import (
    CASES,
    FEW,
    assert_same_state,
    flat,
    params,
    random_grads,
    random_tensors,
    set_grads,
    twins,
)

from powerstep_repro.optim import create, fused
from powerstep_repro.optim.fused import available, launch

few_cases = pytest.mark.parametrize("case", FEW)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SHAPES = [(129,), (7, 30)]


@pytest.fixture
def launches(monkeypatch):
    """Every launch's grid, as they happen."""
    seen = []

    class Kernel:
        def __getitem__(self, grid):
            seen.append(grid)
            return launch_kernel[grid]

    launch_kernel = launch.step_kernel
    monkeypatch.setattr(launch, "step_kernel", Kernel())
    return seen


def close(reference, fused):
    torch.testing.assert_close(flat(params(reference)), flat(params(fused)), rtol=1e-6, atol=1e-8)


def test_one_launch_a_group(device, launches):
    """A program for every block of elements begun, whatever the number of tensors."""
    block = launch.TUNING["none"].block
    tensors = random_tensors(device, [(1,), (100,), (block,), (3, block // 2)])
    p = [torch.nn.Parameter(t) for t in tensors]
    optimizer = create(
        "powerstep", [{"params": p[:1]}, {"params": p[1:], "lr": 0.1}], implementation="fused"
    )
    set_grads([optimizer], random_grads(tensors))
    optimizer.step()
    assert launches == [(1,), (1 + 1 + 2,)]


@few_cases
def test_groups_with_their_own_settings(device, case):
    name, hyper = CASES[case]
    tensors = random_tensors(device, SHAPES)
    optimizers = []
    for implementation in ("reference", "fused"):
        a, b = (torch.nn.Parameter(t.clone()) for t in tensors)
        groups = [{"params": [a], "weight_decay": 0.3}, {"params": [b], "lr": 0.01}]
        optimizers.append(create(name, groups, lr=1e-3, implementation=implementation, **hyper))
    for seed in range(2):
        set_grads(optimizers, random_grads(tensors, seed))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.5
    assert_same_state(*optimizers)
    close(*optimizers)


@few_cases
def test_learning_rate_as_a_tensor(device, case):
    """A schedule writes into it; the kernel reads it where it is."""
    name, hyper = CASES[case]
    tensors = random_tensors(device, SHAPES)
    lr = torch.tensor(1e-2, device=device)
    optimizers = twins(name, tensors, lr=lr, **hyper)
    for seed in range(2):
        set_grads(optimizers, random_grads(tensors, seed))
        for optimizer in optimizers:
            optimizer.step()
        lr.mul_(0.5)
    assert_same_state(*optimizers)
    close(*optimizers)
    number = twins(name, tensors, lr=1e-2, **hyper)[1]
    set_grads([number], random_grads(tensors, 0))
    number.step()


@few_cases
def test_gradients_times_a_factor(device, case):
    """Clipping without a pass over the gradients, which stay as they were."""
    name, hyper = CASES[case]
    tensors = random_tensors(device, SHAPES)
    optimizers = twins(name, tensors, **hyper)
    grads = random_grads(tensors)
    set_grads(optimizers, grads)
    for optimizer in optimizers:
        optimizer.step(grad_factor=torch.tensor(0.37, device=device))
    assert_same_state(*optimizers)
    close(*optimizers)
    assert all(torch.equal(p.grad, g) for p, g in zip(params(optimizers[1]), grads, strict=True))
    scaled = twins(name, tensors, **hyper)[1]
    factor = torch.tensor(0.37, device=device)
    set_grads([scaled], [g * factor for g in grads])
    scaled.step()
    assert torch.equal(flat(params(scaled)), flat(params(optimizers[1])))


@few_cases
def test_addresses_that_move(device, case):
    """New gradients, parameters and states are found; a late or missing gradient is none."""
    name, hyper = CASES[case]
    tensors = random_tensors(device, [*SHAPES, (64,)])
    optimizers = twins(name, tensors, **hyper)
    kept = []  # so that no address comes back by chance
    for seed in range(5):
        grads = random_grads(tensors, seed)
        if seed in (0, 3):
            grads[seed % 2] = None
        kept.append([p.grad for o in optimizers for p in params(o)])
        set_grads(optimizers, grads)
        if seed == 2:
            for optimizer in optimizers:
                p = params(optimizer)[0]
                kept.append(p.data)
                p.data = p.data.clone()
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for optimizer in optimizers:
            optimizer.step()
    assert_same_state(*optimizers)
    close(*optimizers)


def replace_state(optimizer):
    """Another tensor under the same name, as offloading to the host and back leaves it."""
    state = optimizer.state[params(optimizer)[0]]
    for name in state:
        state[name] = state[name].clone()


def replace_state_data(optimizer):
    for value in optimizer.state[params(optimizer)[0]].values():
        value.data = value.data.clone()


def forget_state(optimizer):
    del optimizer.state[params(optimizer)[1]]


def replace_data(optimizer):
    params(optimizer)[0].data = params(optimizer)[0].data.clone()


def turn_data(optimizer):
    """The same memory, read in another order."""
    p = params(optimizer)[1]
    p.data = p.data.t()


def turn_gradient(optimizer):
    p = params(optimizer)[1]
    p.grad.set_(p.grad.t())


def add_group(optimizer):
    extra = torch.nn.Parameter(torch.ones(3, device=params(optimizer)[0].device))
    extra.grad = torch.ones_like(extra)
    optimizer.add_param_group({"params": [extra], "lr": 0.1})


def swap_parameters(optimizer):
    ps = optimizer.param_groups[0]["params"]
    ps.reverse()


def swap_groups(optimizer):
    optimizer.param_groups.reverse()


def change_rates(optimizer):
    optimizer.param_groups[0].update(lr=0.5, weight_decay=0.3)


@few_cases
@pytest.mark.parametrize(
    "change",
    [
        replace_state, replace_state_data, forget_state, replace_data, turn_data, turn_gradient,
        add_group, swap_parameters, swap_groups, change_rates,
    ],
)  # fmt: skip
def test_what_a_step_remembers_is_dropped_when_it_changes(device, case, change):
    """Guards a kernel that goes on with the tensors of the step before, in the same memory."""
    name, hyper = CASES[case]
    tensors = random_tensors(device, [(129,), (7, 30), (16, 16)])
    optimizers = []
    for implementation in ("reference", "fused"):
        ps = [torch.nn.Parameter(t.clone()) for t in tensors]
        groups = [{"params": [ps[0], ps[2]]}, {"params": [ps[1]], "lr": 0.01}]
        optimizers.append(create(name, groups, implementation=implementation, **hyper))
    ordered = (
        [params(optimizers[0])[i] for i in (0, 2, 1)],
        [params(optimizers[1])[i] for i in (0, 2, 1)],
    )
    for seed in range(4):
        grads = random_grads(tensors, seed)
        for optimizer, ps in zip(optimizers, ordered, strict=True):
            for p, g in zip(ps, grads, strict=True):
                if p.grad is None or p.grad.shape != p.shape:
                    p.grad = torch.empty_like(p)
                p.grad.copy_(g)  # where it was: nothing else may have told
            if seed == 2:
                change(optimizer)
            optimizer.step()
    for p, q in zip(*ordered, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        for key, value in optimizers[0].state[p].items():
            other = optimizers[1].state[q][key]
            assert (value.float() - other.float()).abs().max() <= (1 if "codes" in key else 1e-5)


def test_blocks_of_another_size_than_the_states_are_refused(device):
    """The kernel would write scales beyond the end of those that there are."""
    p = torch.nn.Parameter(torch.ones(300, device=device))
    optimizer = create("powerstep_int8", [p], implementation="fused")
    for _ in range(2):
        p.grad = torch.ones_like(p)
        optimizer.step()
    before = p.detach().clone()
    optimizer.param_groups[0]["block_size"] = 32
    with pytest.raises(ValueError, match="momentum_scales, that is not for a parameter of 300"):
        optimizer.step()
    assert torch.equal(p, before)


def test_a_graph_that_is_captured_gets_no_remembered_step(device, monkeypatch):
    """Its address table would be overwritten by later steps from elsewhere."""
    p = torch.nn.Parameter(torch.ones(300, device=device))
    optimizer = create("powerstep", [p], implementation="fused")
    (group,) = optimizer.param_groups
    p.grad = torch.ones_like(p)
    optimizer.step()
    (remembered,) = optimizer._batches(0, group)
    assert remembered.launch is not None
    monkeypatch.setattr(fused, "capturing", lambda device: True)
    (fresh,) = optimizer._batches(0, group)
    assert fresh.launch is None


def test_a_remembered_step_holds_no_gradient(device):
    """Or ``zero_grad`` would free nothing."""
    p = torch.nn.Parameter(torch.ones(300, device=device))
    optimizer = create("powerstep_int8", [p], implementation="fused")
    for _ in range(2):
        p.grad = torch.ones_like(p)
        optimizer.step()
    gradient = weakref.ref(p.grad)
    optimizer.zero_grad()
    assert gradient() is None


@few_cases
def test_states_pass_between_implementations(device, case):
    """A checkpoint of one is continued by the other, and a copied optimizer steps its own copy."""
    name, hyper = CASES[case]
    tensors = random_tensors(device, SHAPES)
    reference, fused = twins(name, tensors, **hyper)
    set_grads((reference, fused), random_grads(tensors, 1))
    fused.step()
    for p, q in zip(params(reference), params(fused), strict=True):
        p.data.copy_(q.data)
    reference.load_state_dict(fused.state_dict())
    assert reference.param_groups[0]["implementation"] == "reference"
    twin = copy.deepcopy(fused)
    set_grads((reference, fused, twin), random_grads(tensors, 2))
    for optimizer in (reference, twin, fused):
        optimizer.step()
    assert_same_state(reference, fused)
    assert torch.equal(flat(params(twin)), flat(params(fused)))


def test_sharded_parameters(device, tmp_path):
    """The kernel steps the local shard of a DTensor; quantization blocks belong to the shard."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    backend = "nccl" if device.type == "cuda" else "gloo"
    init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh(device.type, (1,))
        whole = random_tensors(device, [(33, 10)])[0]
        for name in ("powerstep", "powerstep_int8"):
            p = torch.nn.Parameter(distribute_tensor(whole.clone(), mesh, [Shard(0)]))
            sharded = create(name, [p], lr=1e-3, implementation="fused")
            plain = create(
                name, [torch.nn.Parameter(whole.clone())], lr=1e-3, implementation="fused"
            )
            g = random_grads([whole])[0]
            p.grad = distribute_tensor(g, mesh, [Shard(0)])
            set_grads([plain], [g])
            sharded.step()
            plain.step()
            assert torch.equal(p.to_local(), params(plain)[0])
    finally:
        destroy_process_group()


def test_who_gets_a_fused_step(device):
    """On request here; by itself only on a GPU; never in double precision."""
    p = torch.nn.Parameter(torch.ones(3, device=device))
    q = torch.nn.Parameter(torch.ones(3, device=device, dtype=torch.float64))
    assert available(device)
    auto = create("powerstep", [p])
    expected = "fused" if device.type == "cuda" else "foreach"
    group = auto.param_groups[0]
    assert auto._batch(group, p).taken == expected
    with pytest.raises(ValueError, match=r"fused.*float64"):
        create("powerstep", [q], implementation="fused")
    with pytest.raises(ValueError, match=r"fused.*StaceyReleased"):
        create("stacey_released", [p], implementation="fused")


@pytest.mark.gpu
@needs_gpu
@few_cases
def test_cuda_graph(device, case):
    """A captured step replays on its own tensors, whatever eager steps come between."""
    name, hyper = CASES[case]
    tensors = random_tensors(device, SHAPES)
    lr = torch.tensor(1e-3, device=device)
    eager, captured = (
        create(name, [torch.nn.Parameter(t.clone()) for t in tensors], lr=lr, **hyper)
        for _ in range(2)
    )
    static = [torch.zeros_like(t) for t in tensors]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        set_grads((eager, captured), random_grads(tensors, 0))
        eager.step()
        captured.step()
    torch.cuda.current_stream().wait_stream(side)
    for p, g in zip(params(captured), static, strict=True):
        p.grad = g
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    for seed in range(1, 6):
        grads = random_grads(tensors, seed)
        set_grads([eager], grads)
        lr.fill_(1e-3 * math.cos(seed))
        eager.step()
        if seed == 3:  # an eager step of the captured optimizer, from other addresses
            set_grads([captured], grads)
            captured.step()
        else:
            for s, g in zip(static, grads, strict=True):
                s.copy_(g)
            graph.replay()
    assert torch.equal(flat(params(eager)), flat(params(captured)))


@pytest.mark.gpu
@needs_gpu
@few_cases
def test_no_sync_no_memory_no_recompilation(device, case):
    name, hyper = CASES[case]
    p = torch.nn.Parameter(torch.randn(1 << 22, device=device))
    optimizer = create(name, [p], **hyper)
    p.grad = torch.randn_like(p)
    for lr in (1e-3, 1.0):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    torch.cuda.synchronize()
    compiled = sum(len(c[0]) for c in launch.step_kernel.device_caches.values())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(3):
            optimizer.param_groups[0]["lr"] = 1e-3 * (step + 1)
            optimizer.step()
            p.grad = p.grad.neg()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    optimizer.step()
    extra = torch.cuda.max_memory_allocated() - before - p.grad.nbytes
    assert extra < 1 << 20
    assert sum(len(c[0]) for c in launch.step_kernel.device_caches.values()) == compiled
