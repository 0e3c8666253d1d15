"""Clocks: how long a call takes on a device, and how fast the device copies."""

import itertools
import platform
import statistics
import time
from collections.abc import Callable

import torch

ROUNDS = 3


def durations(call: Callable[[], object], count: int, device: torch.device) -> list[float]:
    """Return the seconds each of ``count`` calls took, back to back on a device kept busy.

    On CUDA these are the times between events in the stream: what the host needs to prepare a
    call shows only where the device has to wait for it.
    """
    if device.type != "cuda":
        ends = [time.perf_counter()]
        for _ in range(count):
            call()
            ends.append(time.perf_counter())
        return [b - a for a, b in itertools.pairwise(ends)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize(device)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize(device)
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def host_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds until a call returns, with an idle device."""
    seen = []
    for _ in range(10 if device.type == "cuda" else 1):
        _synchronize(device)
        start = time.perf_counter()
        call()
        seen.append(time.perf_counter() - start)
    _synchronize(device)
    return statistics.median(seen)


def calls_within(call: Callable[[], object], seconds: float, device: torch.device) -> int:
    """Return how many calls fill ``seconds``: at least 1, at most 50."""
    (once,) = durations(call, 1, device)
    return max(1, min(50, int(seconds / max(once, 1e-6))))


def interleaved(
    calls: dict[str, Callable[[], object]], seconds: float, device: torch.device
) -> dict[str, list[float]]:
    """Time several calls in turns.

    Args:
        calls: By name; each has been called before (compiled, its state made).
        seconds: What one round of one contender may take.
        device: Where they run.

    Returns:
        By name, the median seconds of each of ``ROUNDS`` rounds.
    """
    counts = {name: calls_within(call, seconds, device) for name, call in calls.items()}
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            rounds[name].append(statistics.median(durations(call, counts[name], device)))
    return rounds


def copy_bandwidth(device: torch.device) -> float:
    """Return bytes a second of a large copy, those read and those written."""
    size = (1 << 30) if device.type == "cuda" else (1 << 27)
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times = durations(lambda: target.copy_(source), 10, device)
    return 2 * source.nbytes / statistics.median(times)


def device_name(device: torch.device) -> str:
    """Return what the device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
