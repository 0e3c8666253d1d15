"""A benchmark as a table in the report."""

from collections.abc import Mapping
from typing import Any


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
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
