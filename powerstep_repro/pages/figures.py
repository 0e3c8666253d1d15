"""The figures, one function each, from a profile's runs to a matplotlib figure.

To add one: write a function here under ``@figure``, naming the sweeps whose runs it shows, and
give it a line in the Makefile; ``plot`` draws it then, and the report shows it. Its heading is the
paper's, from ``paper.layout``, or else the first line of its docstring.
"""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure

from powerstep_repro.config import groups_label
from powerstep_repro.evidence import Evidence, Source
from powerstep_repro.evidence.words import data_label, n_label, rate_label, variant_label
from powerstep_repro.pages import style
from powerstep_repro.pages.panels import Line, Panel, draw_panels, empty, frame
from powerstep_repro.paper import FIGURES, MODELS, model_label, optimizer_label
from powerstep_repro.paper.assumed import SPT_BETAS
from powerstep_repro.runs import Cell


@dataclass(frozen=True)
class FigureSpec:
    """A figure: its name, the sweeps that fill it, the function that draws it, its heading."""

    name: str
    sweeps: tuple[str, ...]
    draw: Callable[[Evidence], Figure]

    @property
    def heading(self) -> str:
        """The paper's number and title, or what the function says of itself."""
        paper = FIGURES.get(self.name)
        if paper:
            return f"Figure {paper.number}: {paper.title}"
        said = (self.draw.__doc__ or self.name).strip().partition("\n")[0]
        return f"Beyond the paper: {said.rstrip('.')}"


CATALOGUE: dict[str, FigureSpec] = {}


def figure(*sweeps: str) -> Callable:
    """Enter a function into the catalogue under its own name, with the sweeps that it shows."""

    def enter(draw: Callable[[Evidence], Figure]) -> Callable[[Evidence], Figure]:
        CATALOGUE[draw.__name__] = FigureSpec(draw.__name__, sweeps, draw)
        return draw

    return enter


def draw(name: str, evidence: Evidence) -> Figure:
    """Draw one figure of the catalogue in the house style."""
    with style.house_style():
        return CATALOGUE[name].draw(evidence)


def drawable(evidence: Evidence) -> list[str]:
    """The figures that have something to show: those that need no run, or have one."""
    return [
        name
        for name, spec in CATALOGUE.items()
        if not spec.sweeps or any(evidence.shown(sweep).count() for sweep in spec.sweeps)
    ]


def loss_figure(name: str, evidence: Evidence, panels: Sequence[Panel], columns: int = 2) -> Figure:
    """Draw panels of training loss over tokens under the figure's heading."""
    cells = [line.cell for panel in panels for line in panel.lines]
    return draw_panels(CATALOGUE[name].heading, *_face(evidence, cells), panels, columns)


def _face(evidence: Evidence, cells: Sequence[Cell]) -> tuple[str, str]:
    """Return what stands under a figure's heading, and the banner beside it, if any."""
    subtitle = f"profile {evidence.profile} · data {data_label(cells)} · {n_label(cells)}"
    if left_out := len(evidence.loaded.left_out):
        subtitle += f" · {left_out} run{'s' if left_out > 1 else ''} left out"
    return subtitle, "PLUMBING CHECK, NO EVIDENCE" if evidence.profile == "tiny" else ""


def by_optimizer(
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
        label = optimizer_label(cell.optimizer) + groups_label(cell.config) + suffix(cell)
        lines.append(Line(label, color, dash, cell))
    return lines


def by_value(
    cells: Sequence[Cell], key: str, symbol: str, write: Callable[[float], str] = "{:g}".format
) -> list[Line]:
    """Shade the cells of one optimizer by a config value, from light to dark."""
    cells = sorted(cells, key=lambda cell: cell.value(key))
    tints = style.shades(cells[0].optimizer, len(cells)) if cells else []
    return [
        Line(f"{symbol} = {write(cell.value(key))}", tint, dash, cell)
        for cell, tint, dash in zip(cells, tints, cycle(style.VARIANTS), strict=False)
    ]


def by_model(source: Source, suffix: Callable[[Cell], str] = lambda cell: "") -> list[Panel]:
    """A panel for each model of a sweep, a line for each of its optimizers."""
    return [
        Panel(
            model_label(model),
            by_optimizer(source.find(model), suffix),
            source.command(f"model={model}"),
        )
        for model in dict.fromkeys(cell.model for cell in source.cells)
    ]


@figure()
def spt(evidence: Evidence) -> Figure:
    """Figure 1: the signed power transform sign(x)|x|^β over x in [−1, 1]; needs no run."""
    subtitle = "exact, from the formula; the values of β are assumed"
    canvas, (ax,) = frame(CATALOGUE["spt"].heading, subtitle, ["Φᵦ(x) = sign(x)|x|ᵝ"], 1)
    # Points crowd at zero, where the curves are steep.
    half = np.geomspace(1e-6, 1.0, 400)
    x = np.concatenate([-half[::-1], [0.0], half])
    tints = style.shades("powerstep", len(SPT_BETAS))
    for beta, tint, dash in zip(SPT_BETAS, tints, style.VARIANTS, strict=False):
        label = f"β = {beta:g}" + {0.0: " (sign)", 1.0: " (identity)"}.get(beta, "")
        ax.plot(x, np.sign(x) * np.abs(x) ** beta, color=tint, linestyle=dash, label=label)
    ax.set(xlabel="x", ylabel="Φᵦ(x)", xlim=(-1.02, 1.02), ylim=(-1.1, 1.1))
    ax.legend(loc="lower right")
    return canvas


@figure("small")
def small(evidence: Evidence) -> Figure:
    """Figure 2: training loss of five optimizers, six models."""
    return loss_figure("small", evidence, by_model(evidence.source("small")))


@figure("beta", "gamma")
def hyper(evidence: Evidence) -> Figure:
    """Figure 3: PowerStep over β and over γ, on GPT-2 Medium (at h100, if need be, on Small)."""
    panels = []
    for (key, title), symbol in zip(FIGURES["hyper"].panels.items(), "βγ", strict=True):
        source = evidence.shown(key)
        model = source.cells[0].model
        note = MODELS[model] + ("" if model == "gpt2_medium" else "\nin the paper: Medium")
        lines = by_value(source.cells, f"optimizer.{key}", symbol)
        panels.append(Panel(title, lines, source.command(), f"{note}\n"))
    return loss_figure("hyper", evidence, panels)


@figure("quant")
def quant(evidence: Evidence) -> Figure:
    """Figure 4: int8 state against fp32, both codes."""
    return loss_figure("quant", evidence, by_model(evidence.source("quant"), _code))


def _code(cell: Cell) -> str:
    code = cell.value("optimizer.code")
    return f", {code}" if code else ""


@figure("large")
def large(evidence: Evidence) -> Figure:
    """Figure 5: AdamW in fp32 against PowerStep int8, four large models."""
    return loss_figure("large", evidence, by_model(evidence.source("large")))


@figure("lr")
def lr(evidence: Evidence) -> Figure:
    """Figure 6: six learning rates, AdamW and PowerStep."""
    source, panels = evidence.source("lr"), []
    for name, title in FIGURES["lr"].panels.items():
        cells = [cell for cell in source.cells if cell.optimizer == name]
        note = f"{MODELS[cells[0].model]} · " if cells else ""
        command = source.command(f"optimizer={name}")
        panels.append(Panel(title, by_value(cells, "lr", "lr", rate_label), command, note))
    return loss_figure("lr", evidence, panels)


@figure("stacey")
def stacey(evidence: Evidence) -> Figure:
    """Figure 7: PowerStep against Stacey at two learning rates, two models."""
    return loss_figure("stacey", evidence, by_model(evidence.source("stacey"), _rate))


def _rate(cell: Cell) -> str:
    return f", lr {rate_label(cell.config['lr'])}"


@figure("mechanism")
def mechanism(evidence: Evidence) -> Figure:
    """What each optimizer does to each kind of parameter."""
    source, heading = evidence.source("mechanism"), CATALOGUE["mechanism"].heading
    # Of a setting's seeds the first.
    found = [(cell, cell.loaded.mechanism(cell.runs[0])) for cell in source.cells if cell.runs]
    cells = [cell for cell, looks in found if len(looks)]
    seen = [looks for _, looks in found if len(looks)]
    face = _face(evidence, cells)
    if not seen:
        canvas, (ax,) = frame(heading, face[0], ["update and gradient"], 1, face[1], [False])
        empty(ax, "no log", [], source.command())
        return canvas
    labels = [variant_label(cell) + _rate(cell) for cell in cells]
    titles = [f"{said}: {label}" for said in ("Size", "Angle") for label in labels]
    titles = [textwrap.fill(title, 44) for title in titles]
    canvas, axes = frame(heading, face[0], titles, len(seen), face[1])
    measures = (
        ("update_rms", "RMS of (update ÷ learning rate)"),
        ("cosine", "cosine of update and gradient, by row"),
    )
    for row, (column, words) in enumerate(measures):
        mine = axes[row * len(seen) : (row + 1) * len(seen)]
        for ax, looks in zip(mine, seen, strict=True):
            for kind, (label, color, dash) in style.KINDS.items():
                of_kind = looks[looks["kind"] == kind]
                if len(of_kind):
                    ax.plot(
                        of_kind["step"], of_kind[column], color=color, linestyle=dash, label=label
                    )
            ax.set(xlabel="step", ylabel=words)
        # One scale for all, so that they can be set beside each other.
        limits = [ax.get_ylim() for ax in mine]
        for ax in mine:
            ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    axes[-1].legend(loc="best")
    return canvas
