"""What ``make bench`` left under ``<results_dir>/bench``: one JSON a kind and device."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read(results_dir: Path) -> list[dict[str, Any]]:
    """Return the content of every benchmark file that has rows, sorted by name.

    Each gets ``kind``, the file's name up to the device. A file that is damaged is left out.
    """
    found = []
    for path in sorted((results_dir / "bench").glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        rows = content.get("rows") if isinstance(content, dict) else None
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        if rows:
            found.append(content | {"kind": path.stem.partition("-")[0], "rows": rows})
    return found


def step_ms(benchmarks: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], float]:
    """Return the fastest measured optimizer step in ms by model, optimizer variant and device.

    A row's label is ``NAME [CODE] (IMPLEMENTATION)``; the dynamic code is the default.
    """
    fastest: dict[tuple[str, str, str], float] = {}
    for benchmark in benchmarks:
        for row in benchmark["rows"]:
            if benchmark["kind"] != "optimizers" or type(row.get("ms")) not in (int, float):
                continue
            name = str(row.get("label")).partition(" (")[0].removesuffix(" dynamic")
            key = (str(row.get("model")), name, str(benchmark.get("device")))
            fastest[key] = min(row["ms"], fastest.get(key, float("inf")))
    return fastest


def layout(benchmark: Mapping[str, Any]) -> list[str]:
    """Return a benchmark's rows as the lines of a Markdown table: every column of plain values."""
    columns = dict.fromkeys(
        key
        for row in benchmark["rows"]
        for key, value in row.items()
        if isinstance(value, str | int | float) or value is None
    )
    lines = ["| " + " | ".join(name.replace("_", " ") for name in columns) + " |"]
    lines.append("|---" * len(columns) + "|")
    for row in benchmark["rows"]:
        lines.append("| " + " | ".join(_text(row.get(name)) for name in columns) + " |")
    return lines


def _text(value: Any) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
