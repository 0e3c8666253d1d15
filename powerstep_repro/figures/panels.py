"""Drawing: one panel of loss curves, a panel with nothing in it, and the frame around them."""

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from powerstep_repro.figures.curves import CUT, SMOOTHING, Curve, Strand, mean_over_seeds
from powerstep_repro.figures.smoothing import envelope
from powerstep_repro.figures.style import ALARM, INK, QUIET, new_figure
from powerstep_repro.paper.assumed import COLLAPSE_NATS
from powerstep_repro.paper.layout import PaperFigure

PANEL_WIDTH, PANEL_HEIGHT = 3.9, 2.75
_HEAD, _FOOT, _SIDE = 0.50, 0.26, 0.1
_POINTS_RAW, _POINTS_SMOOTH = 1200, 800
# The first part of a run is a fall of several nats; the axis starts from where it has fallen.
_WARM = 0.1


def grid(spec: PaperFigure, subtitle: str, banner: str = "") -> tuple[Figure, list[Axes]]:
    """Return a figure with the paper's grid of panels, titled; the axes in panel order.

    Args:
        spec: the paper's layout.
        subtitle: profile, data set and the like: what is not the paper's.
        banner: a warning that must not be missed, if any.
    """
    rows = -(-len(spec.panels) // spec.columns)
    width = spec.columns * PANEL_WIDTH + 2 * _SIDE
    height = rows * PANEL_HEIGHT + _HEAD + _FOOT
    figure = new_figure(width, height)
    axes = []
    for index, panel in enumerate(spec.panels):
        row, column = divmod(index, spec.columns)
        left = (_SIDE + column * PANEL_WIDTH + 0.52) / width
        bottom = (_FOOT + (rows - 1 - row) * PANEL_HEIGHT + 0.42) / height
        box = (left, bottom, (PANEL_WIDTH - 0.72) / width, (PANEL_HEIGHT - 0.78) / height)
        ax = figure.add_axes(box)
        letter = f"({chr(ord('a') + index)}) " if len(spec.panels) > 1 else ""
        ax.set_title(f"{letter}{panel.title}", loc="left", pad=5, fontweight="bold")
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
    at = {"transform": ax.transAxes, "ha": "center"}
    y = 0.62 + 0.06 * min(len(reasons), 4)
    ax.text(0.5, y, headline, fontsize=12, color=QUIET, va="center", **at)
    wrapped = textwrap.fill(command, 44, subsequent_indent="    ", break_on_hyphens=False)
    text = "\n".join([*reasons, wrapped])
    ax.text(0.5, y - 0.12, text, fontsize=6.5, color=INK, va="top", family="DejaVu Sans Mono", **at)


def loss_panel(ax: Axes, curves: list[Curve], missing: list[str], note: str) -> None:
    """Draw training loss over tokens: raw values faint, smoothed strands, their mean and band.

    A run that diverged or is unfinished is drawn by itself up to its last finite row, where a
    mark says the step. A curve that leaves the axis at the top is named there with its end.

    Args:
        ax: the panel.
        curves: what was run; none may be empty.
        missing: labels of what was not, each with the reason.
        note: the learning rate and the like, in the corner that loss curves leave free.
    """
    low, high = _limits(curves)
    ends = 0
    for curve in curves:
        _draw(ax, curve, high)
        for strand in {(s.status, s.ended_at): s for s in curve.others}.values():
            _mark_end(ax, strand, curve, high, ends)
            ends += 1
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
    ax.text(0.02, 0.03, note, transform=ax.transAxes, fontsize=6.5, color=QUIET, va="bottom")


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


def _mark_end(ax: Axes, strand: Strand, curve: Curve, top: float, rank: int) -> None:
    """Mark where a run stopped, and say when; ``rank`` keeps labels of several ends apart."""
    x, y = strand.tokens[-1], min(strand.smooth[-1], top)
    diverged = strand.status == "diverged"
    words = "diverged at step" if diverged else f"{strand.status}, step"
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
    right = x < 0.6 * curve.planned_tokens
    ax.annotate(
        f"{words} {strand.ended_at:,}",
        (x, y),
        xytext=(7 if right else -7, 9 + 9 * rank if y < top else -6 - 9 * rank),
        textcoords="offset points",
        fontsize=6.5,
        color=curve.color,
        ha="left" if right else "right",
        va="center",
        zorder=6,
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8},
    )


def smoothing_note() -> str:
    """Say how the curves are smoothed and what the band is."""
    return (
        "Lines: local linear fit, both sides weighted by "
        f"exp(−distance / {SMOOTHING:.0%} of the run's tokens), which does not lag; behind them "
        "the logged values. Band: range over seeds."
    )
