"""What ``make bench`` left under ``<results_dir>/bench``: one JSON a kind and device."""

from collections.abc import Mapping, Sequence
from typing import Any

from powerstep_repro.evidence.sources import Evidence
from powerstep_repro.runs.files import read_json


def read(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the content of every benchmark file, sorted by name; one without rows is a problem.

    Each gets ``kind``, the file's name up to the device.
    """
    found = []
    for path in sorted((evidence.folder.parent / "bench").glob("*.json")):
        content = read_json(path)
        if content.get("rows"):
            found.append(content | {"kind": path.stem.partition("-")[0]})
        else:
            evidence.loaded.problem(f"{path} holds no rows of a benchmark: it is left out")
    return found


def step_ms(benchmarks: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], float]:
    """Return the fastest measured optimizer step in ms by model, optimizer variant and device.

    A row's label is ``NAME [CODE] (IMPLEMENTATION)``; the dynamic code is the default. A row
    without ``ms`` failed.
    """
    fastest: dict[tuple[str, str, str], float] = {}
    for benchmark in benchmarks:
        for row in benchmark["rows"]:
            if benchmark["kind"] == "optimizers" and row.get("ms"):
                name = row["label"].partition(" (")[0].removesuffix(" dynamic")
                key = (row["model"], name, benchmark["device"])
                fastest[key] = min(row["ms"], fastest.get(key, float("inf")))
    return fastest
