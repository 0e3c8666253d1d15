"""Try ways to cut and compile the fused kernel, side by side."""

import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from powerstep_repro.bench.contenders import LR, WEIGHT_DECAY
from powerstep_repro.bench.optimizers import DTYPES, Tensors
from powerstep_repro.bench.timing import copy_bandwidth, interleaved
from powerstep_repro.optim import bytes_per_param, create

# What is tuned: an optimizer, and the entry of ``launch.TUNING`` that its step uses. At β = 0 the
# power costs nothing: what is left shows how much of a step it takes.
KINDS = {
    "none": ("none", "powerstep", {}),
    "none, beta 0": ("none", "powerstep", {"beta": 0.0}),
    "linear": ("linear", "powerstep_int8", {"code": "linear"}),
    "linear, beta 0": ("linear", "powerstep_int8", {"code": "linear", "beta": 0.0}),
    "dynamic": ("dynamic", "powerstep_int8", {"code": "dynamic"}),
    "dynamic, beta 0": ("dynamic", "powerstep_int8", {"code": "dynamic", "beta": 0.0}),
    "adamw": ("adamw", "adamw_int8", {"code": "dynamic"}),
}
# (block, warps, evict, fast)
SHAPES = [(1024, 4, "", 0), (2048, 4, "", 0), (2048, 8, "", 0), (4096, 8, "", 0)]
CANDIDATES = {
    "none": [*SHAPES, (1024, 2, "", 0), (2048, 4, "evict_first", 0), (2048, 4, "", 2)],
    "linear": [*SHAPES, *((b, w, e, 2) for b, w, e, _ in SHAPES), (2048, 4, "evict_first", 2)],
    "dynamic": [
        *SHAPES, *((b, w, e, 2) for b, w, e, _ in SHAPES),
        (2048, 4, "", 1), (1024, 2, "", 2), (2048, 4, "evict_first", 2),
    ],
    "adamw": [*SHAPES, (1024, 2, "", 0), (2048, 4, "evict_first", 0)],
    "none, beta 0": [(2048, 4, "", 0)],
    "linear, beta 0": [(2048, 4, "", 0)],
    "dynamic, beta 0": [(2048, 4, "", 0)],
}  # fmt: skip


def tune(models: Sequence[str], dtype: str, device: torch.device, seconds: float = 0.06) -> dict:
    """Time every candidate on every model; see ``bench_optimizers`` for the arguments.

    Returns:
        ``rows``: model, kind, candidate, milliseconds in the stream and replayed from a CUDA graph,
        and the former over the floor.
    """
    from powerstep_repro.optim.fused import launch

    defaults = dict(launch.TUNING)
    jobs = [(kind, c, dtype) for kind, candidates in CANDIDATES.items() for c in candidates]
    # Each in a process that compiles it into Triton's cache, or they would take turns.
    workers = min(12, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile, jobs))
    bandwidth = copy_bandwidth(device)
    rows = []
    for model in models:
        tensors = Tensors.of(model, DTYPES[dtype], device)
        for kind, candidates in CANDIDATES.items():
            _, name, hyper = KINDS[kind]
            moved = tensors.count * (
                3 * DTYPES[dtype].itemsize + 2 * bytes_per_param(name, **hyper)
            )
            steps, graphs = {}, {}
            for candidate in candidates:
                step = _step(kind, candidate, tensors.params)
                step()
                label = str(candidate)
                steps[label] = step
                graphs[label] = _captured(step)
            stream = interleaved(steps, seconds, device)
            replay = interleaved(graphs, seconds, device)
            for label in steps:
                ms = 1e3 * statistics.median(stream[label])
                rows.append(
                    {
                        "model": model,
                        "kind": kind,
                        "candidate": label,
                        "ms": ms,
                        "ms_rounds": [1e3 * s for s in stream[label]],
                        "graph_ms": 1e3 * statistics.median(replay[label]),
                        "times_floor": ms * bandwidth / moved / 1e3,
                    }
                )
            del steps, graphs
        del tensors
    launch.TUNING.update(defaults)
    return {"dtype": dtype, "copy_bytes_per_s": bandwidth, "rows": rows}


def _step(kind, candidate, params):
    """Return a step of an optimizer of its own under ``candidate``."""
    from powerstep_repro.optim.fused import launch

    entry, name, hyper = KINDS[kind]
    optimizer = create(
        name, params, lr=LR, weight_decay=WEIGHT_DECAY, implementation="fused", **hyper
    )
    block, warps, evict, fast = candidate
    tuning = launch.Tuning(block, warps, evict, fast)

    def step():
        launch.TUNING[entry] = tuning
        optimizer.step()

    return step


def _captured(step):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _compile(job):
    kind, candidate, dtype = job
    p = torch.nn.Parameter(torch.zeros(300, device="cuda", dtype=DTYPES[dtype]))
    p.grad = torch.zeros_like(p)
    _step(kind, candidate, [p])()
    torch.cuda.synchronize()
