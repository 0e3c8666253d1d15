"""The figures of the paper, one function each, from a profile's runs to a matplotlib figure.

To add one: write a function here under ``@figure``, naming the sweeps whose runs it shows, and
give it a line in the Makefile. The paper's panels, titles and numbers are in ``paper.layout``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from powerstep_repro.evidence import (
    Cell,
    Evidence,
    Source,
    data_label,
    n_label,
    rate_label,
    size_label,
)
from powerstep_repro.evidence.cells import OTHER_DATA
from powerstep_repro.evidence.statistics import NOT_RUN
from powerstep_repro.pages import panels, style
from powerstep_repro.pages.panels import Curve, read_curve
from powerstep_repro.paper import FIGURES, MODELS, optimizer_label
from powerstep_repro.paper.assumed import SPT_BETAS

PLUMBING = "PLUMBING CHECK, NO EVIDENCE"


@dataclass(frozen=True)
class FigureSpec:
    """A figure: its name, the sweeps that fill it, and the function that draws it."""

    name: str
    sweeps: tuple[str, ...]
    draw: Callable[[Evidence], Figure]


CATALOGUE: dict[str, FigureSpec] = {}


def figure(*sweeps: str) -> Callable:
    """Enter a function into the catalogue under its own name, with the sweeps that it shows."""

    def enter(draw: Callable[[Evidence], Figure]) -> Callable[[Evidence], Figure]:
        CATALOGUE[draw.__name__] = FigureSpec(draw.__name__, sweeps, draw)
        return draw

    return enter


# What a panel's curves are: label, colour, line style and cell of each.
Line = tuple[str, str, style.Dash, Cell]


def _frame(
    name: str, evidence: Evidence, by_panel: Sequence[Sequence[Cell]]
) -> tuple[Figure, list[Axes]]:
    cells = [cell for panel in by_panel for cell in panel]
    subtitle = f"profile {evidence.profile} · data {data_label(cells)} · {n_label(cells)}"
    damaged = len(evidence.loaded.damaged)
    if damaged:  # whose runs they are, nobody can tell
        subtitle += f" · {damaged} damaged run{'s' if damaged > 1 else ''} left out"
    banner = PLUMBING if evidence.profile == "tiny" else ""
    filled = [any(cell.outcome.status != NOT_RUN for cell in panel) for panel in by_panel]
    canvas, axes = panels.grid(FIGURES[name], subtitle, banner, filled)
    panels.footnote(canvas, panels.smoothing_note())
    return canvas, axes


def _fill(ax: Axes, source: Source, lines: Sequence[Line], *command: str, note: str = "") -> None:
    """Draw a panel's curves, or say that it was not run and how to."""
    curves: list[Curve] = []
    missing = []
    for label, color, dash, cell in lines:
        curve = read_curve(cell, label, color, dash)
        if curve.strands:
            curves.append(curve)
        else:
            missing.append(_why(label, cell))
    if curves:
        panels.loss_panel(ax, curves, missing, note or _note(lines))
        return
    tried = [_why(label, cell) for label, *_, cell in lines if cell.outcome.status != NOT_RUN]
    headline = OTHER_DATA if any(cell.elsewhere for *_, cell in lines) else NOT_RUN
    headline = "no data" if any(cell.runs for *_, cell in lines) else headline
    panels.empty(ax, headline, tried, source.command(*command))


def _why(label: str, cell: Cell) -> str:
    """Say why nothing can be drawn of a cell, in a table's words where it has no run."""
    outcome = cell.outcome
    if not cell.runs:
        return f"{label}: {outcome.words()}"
    ended = "validation " if outcome.finals else ""
    return f"{label}: no data" + (f" ({ended}{outcome.words()})" if outcome.n else "")


def _note(lines: Sequence[Line]) -> str:
    """Name the learning rate where curves share it, the steps, and the size where it is scaled."""
    rates = sorted({cell.config["lr"] for *_, cell in lines})
    steps = max(cell.config["steps"] for *_, cell in lines)
    shared = f"lr {rate_label(rates[0])} · " if len(rates) == 1 else ""
    sizes = sorted({cell.scaled_to for *_, cell in lines if cell.scaled_to})
    scaled = "".join(f"scaled to {size_label(size)} parameters\n" for size in sizes)
    return f"{scaled}{shared}{steps:,} steps"


def _by_optimizer(
    cells: Sequence[Cell], suffix: Callable[[Cell], str] = lambda cell: ""
) -> list[Line]:
    """Give each cell its optimizer's colour; no two of a panel share a line style."""
    taken = [style.of_optimizer(name)[1] for name in {cell.optimizer for cell in cells}]
    lines, seen = [], set()
    for cell in cells:
        color, dash = style.of_optimizer(cell.optimizer)
        if cell.optimizer in seen:
            dash = next((d for d in style.VARIANTS if d not in taken), dash)
            taken.append(dash)
        seen.add(cell.optimizer)
        lines.append((optimizer_label(cell.optimizer) + suffix(cell), color, dash, cell))
    return lines


def _by_value(
    cells: Sequence[Cell], key: str, symbol: str, write: Callable[[float], str] = "{:g}".format
) -> list[Line]:
    """Shade the cells of one optimizer by a config value, from light to dark."""
    cells = sorted(cells, key=lambda cell: cell.value(key))
    tints = style.shades(cells[0].optimizer, len(cells)) if cells else []
    return [
        (f"{symbol} = {write(cell.value(key))}", tint, dash, cell)
        for cell, tint, dash in zip(cells, tints, cycle(style.VARIANTS), strict=False)
    ]


def _by_model(name: str, source: Source) -> dict[str, list[Cell]]:
    """The cells of each of a figure's panels, by the model that the panel shows."""
    return {panel.key: source.find(panel.key) for panel in FIGURES[name].panels}


@figure()
def spt(evidence: Evidence) -> Figure:
    """Figure 1: the signed power transform sign(x)|x|^β over x in [−1, 1]; needs no run."""
    spec = FIGURES["spt"]
    canvas, (ax,) = panels.grid(spec, "exact, from the formula; the values of β are assumed")
    # Points crowd at zero, where the curves are steep.
    half = np.geomspace(1e-6, 1.0, 400)
    x = np.concatenate([-half[::-1], [0.0], half])
    tints = style.shades("powerstep", len(SPT_BETAS))
    for beta, tint, dash in zip(SPT_BETAS, tints, style.VARIANTS, strict=False):
        name = {0.0: " (sign)", 1.0: " (identity)"}.get(beta, "")
        ax.plot(
            x,
            np.sign(x) * np.abs(x) ** beta,
            color=tint,
            linestyle=dash,
            label=f"β = {beta:g}{name}",
        )
    ax.set(xlabel="x", ylabel="Φᵦ(x)", xlim=(-1.02, 1.02), ylim=(-1.1, 1.1))
    ax.legend(loc="lower right")
    return canvas


@figure("small")
def small(evidence: Evidence) -> Figure:
    """Figure 2: training loss of five optimizers, six models."""
    source = evidence.source("small")
    by_panel = _by_model("small", source)
    canvas, axes = _frame("small", evidence, list(by_panel.values()))
    for ax, (model, cells) in zip(axes, by_panel.items(), strict=True):
        _fill(ax, source, _by_optimizer(cells), f"model={model}")
    return canvas


@figure("beta", "gamma")
def hyper(evidence: Evidence) -> Figure:
    """Figure 3: PowerStep over β and over γ, on GPT-2 Medium (at h100, if need be, on Small)."""
    sources = evidence.sources_or(("beta", "gamma"), "model=gpt2_small")
    canvas, axes = _frame("hyper", evidence, [source.cells for source in sources])
    for ax, source, key in zip(axes, sources, ("beta", "gamma"), strict=True):
        lines = _by_value(source.cells, f"optimizer.{key}", {"beta": "β", "gamma": "γ"}[key])
        model = source.cells[0].model
        note = f"{MODELS[model]}\n{_note(lines)}"
        if model != "gpt2_medium":
            note = f"{MODELS[model]}\nin the paper: Medium\n{_note(lines)}"
        _fill(ax, source, lines, note=note)
    return canvas


@figure("quant")
def quant(evidence: Evidence) -> Figure:
    """Figure 4: int8 state against fp32, both codes."""
    source = evidence.source("quant")
    by_panel = _by_model("quant", source)
    canvas, axes = _frame("quant", evidence, list(by_panel.values()))
    for ax, (model, cells) in zip(axes, by_panel.items(), strict=True):
        _fill(ax, source, _by_optimizer(cells, _code), f"model={model}")
    return canvas


def _code(cell: Cell) -> str:
    code = cell.value("optimizer.code")
    return f", {code}" if code else ""


@figure("large")
def large(evidence: Evidence) -> Figure:
    """Figure 5: AdamW in fp32 against PowerStep int8, four large models."""
    source = evidence.source("large")
    by_panel = _by_model("large", source)
    canvas, axes = _frame("large", evidence, list(by_panel.values()))
    for ax, (model, cells) in zip(axes, by_panel.items(), strict=True):
        _fill(ax, source, _by_optimizer(cells), f"model={model}")
    return canvas


@figure("lr")
def lr(evidence: Evidence) -> Figure:
    """Figure 6: six learning rates, AdamW and PowerStep."""
    source = evidence.source("lr")
    names = [panel.key for panel in FIGURES["lr"].panels]
    by_panel = [[cell for cell in source.cells if cell.optimizer == name] for name in names]
    canvas, axes = _frame("lr", evidence, by_panel)
    for ax, name, cells in zip(axes, names, by_panel, strict=True):
        lines = _by_value(cells, "lr", "lr", rate_label)
        note = f"{MODELS[cells[0].model]} · {_note(lines)}" if cells else ""
        _fill(ax, source, lines, f"optimizer={name}", note=note)
    return canvas


@figure("stacey")
def stacey(evidence: Evidence) -> Figure:
    """Figure 7: PowerStep against Stacey at two learning rates, two models."""
    source = evidence.source("stacey")
    by_panel = _by_model("stacey", source)
    canvas, axes = _frame("stacey", evidence, list(by_panel.values()))
    for ax, (model, cells) in zip(axes, by_panel.items(), strict=True):
        _fill(ax, source, _by_optimizer(cells, _rate), f"model={model}")
    return canvas


def _rate(cell: Cell) -> str:
    return f", lr {rate_label(cell.config['lr'])}"


def draw(name: str, evidence: Evidence) -> Figure:
    """Draw one figure of the catalogue in the house style."""
    with style.house_style():
        return CATALOGUE[name].draw(evidence)
