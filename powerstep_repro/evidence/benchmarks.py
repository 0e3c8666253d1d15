"""What ``make bench`` left under ``<results_dir>/bench``: one JSON a kind and device."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from powerstep_repro.evidence import Evidence
from powerstep_repro.runs.files import read_json


def read(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the content of every benchmark file, sorted by name; one without rows is a problem.

    Each gets ``kind``, the file's name up to the device. A number that is none (NaN, infinite, a
    time that is a text or not above zero) is left out of its row, and named as a problem.
    """
    found = []
    for path in sorted((evidence.folder.parent / "bench").glob("*.json")):
        content = read_json(path)
        rows = content.get("rows")
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        if rows:
            lost = [key for row in rows for key in _damaged(row)]
            if lost:
                keys = ", ".join(dict.fromkeys(lost))
                evidence.loaded.problem(
                    f"{path}: {len(lost)} values of a benchmark are no measurements ({keys}): they "
                    "are left out"
                )
            rows = [row | dict.fromkeys(_damaged(row)) for row in rows]
            found.append(content | {"kind": path.stem.partition("-")[0], "rows": rows})
        else:
            evidence.loaded.problem(f"{path} holds no rows of a benchmark: it is left out")
    return found


def _damaged(row: Mapping[str, Any]) -> list[str]:
    """The keys of a row's values that no measurement gives."""
    return [
        key
        for key, value in row.items()
        if (type(value) is float and not math.isfinite(value))
        or (key == "ms" and value is not None and not (_is_number(value) and value > 0))
    ]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def step_ms(benchmarks: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], float]:
    """Return the fastest measured optimizer step in ms by model, optimizer variant and device.

    A row's label is ``NAME [CODE] (IMPLEMENTATION)``; the dynamic code is the default.
    """
    fastest: dict[tuple[str, str, str], float] = {}
    for benchmark in benchmarks:
        for row in benchmark["rows"]:
            if benchmark["kind"] != "optimizers" or not _is_number(row.get("ms")):
                continue
            name = str(row.get("label")).partition(" (")[0].removesuffix(" dynamic")
            key = (str(row.get("model")), name, str(benchmark.get("device")))
            fastest[key] = min(row["ms"], fastest.get(key, float("inf")))
    return fastest
