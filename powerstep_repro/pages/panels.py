"""Drawing: one panel of loss curves, a panel with nothing in it, and the frame around them."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from powerstep_repro.evidence import Cell
from powerstep_repro.evidence.curves import (
    CUT,
    SMOOTHING,
    Strand,
    mean_over_seeds,
    planned_tokens,
    read_strand,
)
from powerstep_repro.evidence.smoothing import envelope
from powerstep_repro.pages.style import ALARM, INK, QUIET, Dash, new_figure
from powerstep_repro.paper import MODELS
from powerstep_repro.paper.assumed import COLLAPSE_NATS
from powerstep_repro.paper.layout import PaperFigure

PANEL_WIDTH, PANEL_HEIGHT = 3.9, 2.75
# Of a row in which nothing was run: room for the command.
EMPTY_HEIGHT = 1.55
_LINE = 8.0  # points from one line of small print to the next
_HEAD, _FOOT, _SIDE = 0.50, 0.26, 0.1
_POINTS_RAW, _POINTS_SMOOTH = 1200, 800
# The first part of a run is a fall of several nats; the axis starts from where it has fallen.
_WARM = 0.1


@dataclass(frozen=True)
class Curve:
    """All seeds of one configuration under one label, in one colour and line style.

    ``without_data`` counts the runs of which nothing can be drawn.
    """

    label: str
    color: str
    dash: Dash
    strands: list[Strand]
    planned_tokens: float
    config: dict = field(repr=False)
    without_data: int = 0

    @property
    def finished(self) -> list[Strand]:
        """The strands that reached the end: those that may be averaged."""
        return [s for s in self.strands if s.status == "finished"]

    @property
    def others(self) -> list[Strand]:
        """The strands that did not, each drawn by itself to its marked end."""
        return [s for s in self.strands if s.status != "finished"]

    @property
    def last(self) -> float:
        """The smoothed loss at the end: mean of the finished, else the lowest end of the others."""
        ends = [s.smooth[-1] for s in self.finished or self.others if len(s.smooth)]
        if not ends:
            return float("inf")
        return float(np.mean(ends)) if self.finished else float(min(ends))


def read_curve(cell: Cell, label: str, color: str, dash: Dash) -> Curve:
    """Read all runs of one cell as one curve."""
    strands = [read_strand(cell, run) for run in cell.runs]
    drawn = [strand for strand in strands if len(strand.steps)]
    without = len(strands) - len(drawn)
    return Curve(label, color, dash, drawn, planned_tokens(cell.config), cell.config, without)


def grid(
    spec: PaperFigure, subtitle: str, banner: str = "", filled: Sequence[bool] = ()
) -> tuple[Figure, list[Axes]]:
    """Return a figure with the paper's grid of panels, titled; the axes in panel order.

    Args:
        spec: the paper's layout.
        subtitle: profile, data set and the like: what is not the paper's.
        banner: a warning that must not be missed, if any.
        filled: for each panel whether it has something to show; a row without is lower.
    """
    shown = list(filled) or [True] * len(spec.panels)
    starts = range(0, len(spec.panels), spec.columns)
    heights = [PANEL_HEIGHT if any(shown[i : i + spec.columns]) else EMPTY_HEIGHT for i in starts]
    width = spec.columns * PANEL_WIDTH + 2 * _SIDE
    height = sum(heights) + _HEAD + _FOOT
    figure = new_figure(width, height)
    axes = []
    for index, panel in enumerate(spec.panels):
        row, column = divmod(index, spec.columns)
        left = (_SIDE + column * PANEL_WIDTH + 0.52) / width
        bottom = (_FOOT + sum(heights[row + 1 :]) + 0.42) / height
        box = (left, bottom, (PANEL_WIDTH - 0.72) / width, (heights[row] - 0.78) / height)
        ax = figure.add_axes(box)
        letter = f"({chr(ord('a') + index)}) " if len(spec.panels) > 1 else ""
        # A sub-caption of the paper that is a model is written as everywhere else.
        title = MODELS.get(panel.key, panel.title)
        ax.set_title(f"{letter}{title}", loc="left", pad=5, fontweight="bold")
        axes.append(ax)
    x, top = (_SIDE + 0.1) / width, 1 - 0.14 / height
    figure.text(
        x, top, f"Figure {spec.number}: {spec.title}", fontsize=11, fontweight="bold", va="top"
    )
    figure.text(x, 1 - 0.36 / height, subtitle, fontsize=7.5, color=QUIET, va="top")
    if banner:
        figure.text(
            1 - x,
            top,
            banner,
            fontsize=7.5,
            color="white",
            va="top",
            ha="right",
            fontweight="bold",
            bbox={"facecolor": ALARM, "edgecolor": "none", "boxstyle": "round,pad=0.3"},
        )
    return figure, axes


def footnote(figure: Figure, text: str) -> None:
    """Write the line under the panels."""
    x = (_SIDE + 0.1) / figure.get_figwidth()
    y = 0.1 / figure.get_figheight()
    figure.text(x, y, text, fontsize=6.5, color=QUIET, va="bottom")


def empty(ax: Axes, headline: str, reasons: list[str], command: str) -> None:
    """Mark a panel as empty, say why, and print the command that would fill it."""
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set(visible=True, linestyle=(0, (2, 2)))
    wrapped = textwrap.wrap(command, 52, subsequent_indent="    ", break_on_hyphens=False)
    lines = [*reasons, *wrapped]
    top = (18 + _LINE * len(lines)) / 2
    at = {"xy": (0.5, 0.5), "xycoords": "axes fraction", "textcoords": "offset points"}
    at |= {"ha": "center", "va": "top"}
    ax.annotate(headline, xytext=(0, top), fontsize=12, color=QUIET, **at)
    small = {"fontsize": 6.5, "color": INK, "family": "DejaVu Sans Mono", "multialignment": "left"}
    ax.annotate("\n".join(lines), xytext=(0, top - 18), **small, **at)


def loss_panel(ax: Axes, curves: list[Curve], missing: list[str], note: str) -> None:
    """Draw training loss over tokens: raw values faint, smoothed strands, their mean and band.

    A run that diverged or is unfinished is drawn by itself up to its last finite row, which is
    marked; the step is in the corner that loss curves leave free. A curve that leaves the axis at
    the top is named there with its end.

    Args:
        ax: the panel.
        curves: what was run; none may be empty.
        missing: labels of what was not, each with the reason.
        note: the learning rate and the like, in the same corner.
    """
    low, high = _limits(curves)
    corner = [(line, QUIET) for line in [*note.split("\n"), *_cut_off(curves, high)]]
    for curve in reversed(curves):
        corner[:0] = [(f"{curve.label}: {words}", curve.color) for words in _ends(curve)]
    for curve in curves:
        _draw(ax, curve, high)
        for strand in curve.others:
            _mark_end(ax, strand, curve, high)
    for label in missing:
        ax.plot([], [], linestyle="none", label=label)
    total = max(c.planned_tokens for c in curves)
    ax.set_xlim(0, total * 1.02)
    ax.set_ylim(low, high)
    ax.xaxis.set_major_formatter(EngFormatter(places=None, sep=""))
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set_xlabel("training tokens")
    ax.set_ylabel("training loss (nats)")
    legend = ax.legend(loc="upper right")
    for text in legend.get_texts()[len(curves) :]:
        text.set_color(ALARM)
    at = {"xy": (0.02, 0.03), "xycoords": "axes fraction", "textcoords": "offset points"}
    for rank, (line, color) in enumerate(corner, start=1):
        up = _LINE * (len(corner) - rank)
        ax.annotate(line, xytext=(0, up), fontsize=6.5, color=color, zorder=6, **at)


def _ends(curve: Curve) -> list[str]:
    """Say how and at which step the runs of a curve stopped that did not reach the end."""
    words = []
    for status in dict.fromkeys(s.status for s in curve.others):
        steps = sorted({s.ended_at for s in curve.others if s.status == status})
        at = f"step{'s' if len(steps) > 1 else ''} {', '.join(f'{step:,}' for step in steps)}"
        words.append(f"diverged at {at}" if status == "diverged" else f"{status}, {at}")
    return words


def _cut_off(curves: list[Curve], top: float) -> list[str]:
    """Say where the curves come from, if that is above the axis."""
    strands = [strand for curve in curves for strand in curve.strands]
    first = min(int(strand.steps[0]) for strand in strands)
    losses = [float(s.raw[0]) for s in strands if int(s.steps[0]) == first]
    if max(losses) <= top:
        return []
    shown = dict.fromkeys(f"{loss:.4g}" for loss in (min(losses), max(losses)))
    return [f"step {first:,}: {'–'.join(shown)}, off the axis"]


def _limits(curves: list[Curve]) -> tuple[float, float]:
    """Choose the loss axis by the curves that ended well: a collapsed one must not flatten them."""
    best = min(c.last for c in curves)
    good = [c for c in curves if c.last <= best + COLLAPSE_NATS] or curves
    ends, starts = [], []
    for strand in (s for c in good for s in c.strands):
        warm = strand.tokens >= _WARM * max(c.planned_tokens for c in good)
        shown = strand.smooth[warm] if warm.any() else strand.smooth[-1:]
        ends.append(shown.min())
        starts.append(shown.max())
    low, high = min(ends), float(np.median(starts))
    # Whatever ended slow but sound stays in sight to its end.
    high = max([high, *(c.last + 0.1 for c in curves if c.last <= best + 2 * COLLAPSE_NATS)])
    pad = 0.06 * max(high - low, 0.05)
    return low - pad, high + pad


def _label(curve: Curve, top: float) -> str:
    parts = [f"n={len(curve.strands)}"]
    diverged = sum(s.status == "diverged" for s in curve.strands)
    cut = sum(s.status == CUT for s in curve.strands)
    unfinished = len(curve.others) - diverged - cut
    counts = {"diverged": diverged, "unfinished": unfinished, CUT: cut}
    counts["without data"] = curve.without_data
    parts += [f"{count} {words}" for words, count in counts.items() if count]
    end = ""
    if curve.finished and curve.last > top:
        peak = max(s.smooth.max() for s in curve.finished)
        end = f"\n↑ off the axis: ends at {curve.last:.3g}, peak {peak:.3g}"
    return f"{curve.label} ({', '.join(parts)}){end}"


def _draw(ax: Axes, curve: Curve, top: float) -> None:
    style = {"color": curve.color, "linestyle": curve.dash}
    for strand in curve.strands:
        x, y = envelope(strand.tokens, strand.raw, _POINTS_RAW)
        ax.plot(x, y, color=curve.color, linewidth=0.4, alpha=0.16, zorder=1)
    label = _label(curve, top)
    if curve.finished:
        mean = mean_over_seeds(curve.finished)
        rows = _thin(len(mean.tokens))
        if len(curve.finished) > 1:
            low, high, x = mean.low[rows], mean.high[rows], mean.tokens[rows]
            ax.fill_between(x, low, high, color=curve.color, alpha=0.22, linewidth=0, zorder=2)
        ax.plot(mean.tokens[rows], mean.middle[rows], label=label, zorder=3, **style)
        label = None
        if curve.last > top:
            edge = {"marker": "^", "markersize": 6, "linestyle": "none", "clip_on": False}
            ax.plot(mean.tokens[-1:], [top], color=curve.color, zorder=5, **edge)
    for strand in curve.others:
        rows = _thin(len(strand.tokens))
        ax.plot(
            strand.tokens[rows], strand.smooth[rows], label=label, zorder=3, linewidth=1.1, **style
        )
        label = None


def _thin(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, _POINTS_SMOOTH)).astype(int))


def _mark_end(ax: Axes, strand: Strand, curve: Curve, top: float) -> None:
    """Mark where a run stopped."""
    x, y = strand.tokens[-1], min(strand.smooth[-1], top)
    diverged = strand.status == "diverged"
    ax.plot(
        [x],
        [y],
        marker="X" if diverged else "o",
        markersize=6.5 if diverged else 4.5,
        markerfacecolor=curve.color if diverged else "white",
        markeredgecolor="white" if diverged else curve.color,
        linestyle="none",
        clip_on=False,
        zorder=5,
    )


def smoothing_note() -> str:
    """Say how the curves are smoothed and what the band is."""
    return (
        "Lines: local linear fit, both sides weighted by "
        f"exp(−distance / {SMOOTHING:.0%} of the run's tokens), which does not lag; behind them "
        "the logged values. Band: range over seeds."
    )
