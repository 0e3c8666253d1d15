"""How long a run will take: measured on runs of its shape, else a guess, else unknown."""

import heapq
from collections.abc import Iterable, Sequence
from statistics import median, mode

from powerstep_repro.config import canonical

# Without any finished run: `tiny` models are sized for about this on one core, so that 200 steps
# take a quarter of a minute. Other profiles depend on a device that a plan cannot know: unknown.
TINY_START_SECONDS = 4.0
TINY_STEP_SECONDS = 0.055

# Fields that set the time of a step; the optimizer is added where a run with the same one is there.
SHAPE = ("profile", "model", "batch", "context", "precision", "compile")


class History:
    """The time a step took in runs that have ended, by the shape of the run.

    Args:
        ended: (config, facts) of each ended run, the facts ``wall_s``, ``steps_done`` and
            ``device``; runs without a time are passed over.
    """

    def __init__(self, ended: Iterable[tuple[dict, dict]] = ()):
        self._seen: dict[tuple, list[tuple[float, str]]] = {}
        for config, facts in ended:
            wall, steps = facts.get("wall_s"), facts.get("steps_done")
            if wall and steps and wall / steps > 0:  # a missing number may be NaN
                for key in _keys(config):
                    seen = (wall / steps, str(facts.get("device")))
                    self._seen.setdefault(key, []).append(seen)

    def seconds(self, config: dict, steps_done: int = 0) -> tuple[float | None, str]:
        """Seconds that ``config`` needs from ``steps_done`` on, and where that is known from.

        Returns:
            (seconds, "measured on DEVICE"), (seconds, "guess") or (None, "unknown").
        """
        left = max(0, config["steps"] - steps_done)
        for key in _keys(config):
            if key in self._seen:
                seconds, devices = zip(*self._seen[key], strict=True)
                return median(seconds) * left, f"measured on {mode(devices)}"
        if config["profile"] == "tiny":
            return TINY_START_SECONDS + TINY_STEP_SECONDS * left, "guess"
        return None, "unknown"


def _keys(config: dict) -> list[tuple]:
    """Lookup keys, the closest first: same shape and optimizer, then same shape."""
    shape = tuple(canonical(config.get(field)) for field in SHAPE)
    return [(*shape, config["optimizer"]["name"]), shape]


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Seconds until ``workers`` that take the next run as soon as they are free have done all."""
    free = [0.0] * max(1, workers)
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def duration(seconds: float) -> str:
    """``seconds`` for people: 45 s, 12 min, 3.5 h, 2.1 d."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            value = seconds / size
            return f"{value:.1f} {unit}" if unit == "h" and value < 10 else f"{value:.0f} {unit}"
    return f"{seconds / 86400:.1f} d"
