"""How fast a run went, and how much of its card that was."""

from pathlib import Path
from typing import Any

from powerstep_repro.runs.files import read_log

# Dense FLOP/s of cards by the products' precision, from their data sheets; part of the card's name.
PEAKS = {
    "H100 PCIe": {"bf16": 756e12, "fp32": 51e12},
    "H100": {"bf16": 989e12, "fp32": 67e12},
    "H200": {"bf16": 989e12, "fp32": 67e12},
    "A100": {"bf16": 312e12, "fp32": 19.5e12},
    "L40S": {"bf16": 362e12, "fp32": 91.6e12},
    "RTX 4090": {"bf16": 165e12, "fp32": 82.6e12},
}


def peak_flops(card: str, precision: str) -> float | None:
    """Return the dense FLOP/s of a card, or None for one that is not in the list.

    Args:
        card: Its name, as torch gives it.
        precision: "amp_bf16", "bf16" or "fp32".
    """
    kind = "fp32" if precision == "fp32" else "bf16"
    return next((peaks[kind] for name, peaks in PEAKS.items() if name in card), None)


def settled(log: Any) -> Any:
    """Return a log's rows (a list or a pandas object) without the first tenth: it compiled."""
    return log[len(log) // 10 :]


def speed_line(folder: Path, summary: dict[str, Any], precision: str, cuda: bool) -> str | None:
    """Say in one line how fast an ended run went; None for one without a row.

    Tokens a second are the median over the log without its first tenth, where compiling shows.
    Utilisation (MFU) counts the FLOPs of forward and backward (``flops_per_token``) against the
    card's dense peak; it is left out for devices whose peak is not known.

    Args:
        folder: A run directory.
        summary: What its ``summary.json`` holds.
        precision: As in its config.
        cuda: Whether it ran on a card, whose memory is then told; a process's own says little.
    """
    rates = read_log(folder, ["tokens_per_s"])["tokens_per_s"].dropna()
    if not len(rates):
        return None
    rate = settled(rates).median()
    line = f"{rate:,.0f} tokens/s"
    if peak := peak_flops(summary["device"], precision):
        used = rate * summary["flops_per_token"] / (peak * summary["world_size"])
        line += f", {100 * used:.1f} % MFU"
    return f"{line}, at most {summary['peak_memory_bytes'] / 2**30:.2f} GiB" if cuda else line
