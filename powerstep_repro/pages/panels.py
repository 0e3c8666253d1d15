"""Drawing: panels of loss curves, a panel with nothing in it, and the frame around them."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from powerstep_repro.evidence.curves import (
    SMOOTHING,
    Curve,
    Strand,
    mean_over_seeds,
    read_curve,
)
from powerstep_repro.evidence.memory import scaled_to
from powerstep_repro.evidence.smoothing import envelope
from powerstep_repro.evidence.words import rate_label, size_label
from powerstep_repro.pages.style import ALARM, INK, QUIET, Dash, new_figure
from powerstep_repro.paper.assumed import COLLAPSE_NATS
from powerstep_repro.runs import Cell
from powerstep_repro.runs.cells import DIVERGED, NOT_RUN, OTHER_DATA

PANEL_WIDTH, PANEL_HEIGHT = 3.9, 2.75
# Of a row in which nothing was run: room for the command.
EMPTY_HEIGHT = 1.55
_LINE = 8.0  # points from one line of small print to the next
_HEAD, _FOOT, _SIDE = 0.50, 0.26, 0.1
_POINTS_RAW, _POINTS_SMOOTH = 1200, 800
# The first part of a run is a fall of several nats; the axis starts from where it has fallen.
_WARM = 0.1
_NOTE = (
    "Lines: local linear fit, both sides weighted by "
    f"exp(−distance / {SMOOTHING:.0%} of the run's tokens), which does not lag; behind them "
    "the logged values. Band: range over seeds."
)


@dataclass(frozen=True)
class Line:
    """All seeds of one cell under one label, in one colour and line style."""

    label: str
    color: str
    dash: Dash
    cell: Cell


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its lines, the command that would fill it, and what its note starts with.

    The note goes on with the learning rate, if the lines share it, and the number of steps.
    """

    title: str
    lines: Sequence[Line]
    command: str
    note: str = ""


@dataclass(frozen=True)
class _Drawn:
    """A line of which something can be drawn."""

    line: Line
    curve: Curve

    @property
    def style(self) -> dict:
        return {"color": self.line.color, "linestyle": self.line.dash}


def draw_panels(
    heading: str, subtitle: str, banner: str, panels: Sequence[Panel], columns: int
) -> Figure:
    """Draw panels of training loss over tokens.

    Args:
        heading: the figure's heading.
        subtitle: profile, data set and the like.
        banner: a warning that must not be missed, if any.
        panels: in the order of the grid.
        columns: panels in a row.
    """
    filled = [any(x.cell.outcome.status != NOT_RUN for x in panel.lines) for panel in panels]
    titles = [panel.title for panel in panels]
    if len(panels) > 1:
        titles = [f"({chr(ord('a') + i)}) {title}" for i, title in enumerate(titles)]
    figure, axes = frame(heading, subtitle, titles, columns, banner, filled)
    x, y = (_SIDE + 0.1) / figure.get_figwidth(), 0.1 / figure.get_figheight()
    figure.text(x, y, _NOTE, fontsize=6.5, color=QUIET, va="bottom")
    for ax, panel in zip(axes, panels, strict=True):
        _fill(ax, panel)
    return figure


def frame(
    heading: str,
    subtitle: str,
    titles: Sequence[str],
    columns: int,
    banner: str = "",
    filled: Sequence[bool] = (),
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a grid of empty panels, titled; the axes in panel order.

    Args:
        heading: over all.
        subtitle: under the heading, small.
        titles: one a panel.
        columns: panels in a row.
        banner: a warning that must not be missed, if any.
        filled: for each panel whether it has something to show; a row without is lower.
    """
    shown = list(filled) or [True] * len(titles)
    starts = range(0, len(titles), columns)
    heights = [PANEL_HEIGHT if any(shown[i : i + columns]) else EMPTY_HEIGHT for i in starts]
    width = columns * PANEL_WIDTH + 2 * _SIDE
    height = sum(heights) + _HEAD + _FOOT
    figure = new_figure(width, height)
    axes = []
    for index, title in enumerate(titles):
        row, column = divmod(index, columns)
        left = (_SIDE + column * PANEL_WIDTH + 0.52) / width
        bottom = (_FOOT + sum(heights[row + 1 :]) + 0.42) / height
        box = (left, bottom, (PANEL_WIDTH - 0.72) / width, (heights[row] - 0.78) / height)
        ax = figure.add_axes(box)
        ax.set_title(title, loc="left", pad=5, fontweight="bold")
        axes.append(ax)
    x, top = (_SIDE + 0.1) / width, 1 - 0.14 / height
    figure.text(x, top, heading, fontsize=11, fontweight="bold", va="top")
    figure.text(x, 1 - 0.36 / height, subtitle, fontsize=7.5, color=QUIET, va="top")
    if banner:
        box = {"facecolor": ALARM, "edgecolor": "none", "boxstyle": "round,pad=0.3"}
        look = {"fontsize": 7.5, "color": "white", "fontweight": "bold", "bbox": box}
        # Beside the subtitle: a heading of one's own may be long.
        figure.text(1 - x, 1 - 0.36 / height, banner, va="top", ha="right", **look)
    return figure, axes


def _fill(ax: Axes, panel: Panel) -> None:
    """Draw a panel's curves, or say that it was not run and how to."""
    curves = [_Drawn(line, read_curve(line.cell)) for line in panel.lines]
    drawn = [each for each in curves if each.curve.strands]
    without = [each.line for each in curves if not each.curve.strands]
    if drawn:
        note = panel.note + _note([line.cell for line in panel.lines])
        _loss_panel(ax, drawn, [_why(line) for line in without], note)
        return
    headline = OTHER_DATA if any(line.cell.elsewhere for line in panel.lines) else NOT_RUN
    headline = "no data" if any(line.cell.runs for line in panel.lines) else headline
    tried = [_why(line) for line in without if line.cell.outcome.status != NOT_RUN]
    empty(ax, headline, tried, panel.command)


def _why(line: Line) -> str:
    """Say why nothing can be drawn of a cell, in a table's words."""
    return f"{line.label}: {line.cell.outcome.words()}"


def _note(cells: Sequence[Cell]) -> str:
    """Name the learning rate where curves share it, the steps, and the size where it is scaled."""
    rates = {cell.config["lr"] for cell in cells}
    shared = f"lr {rate_label(*rates)} · " if len(rates) == 1 else ""
    sizes = sorted({size for cell in cells if (size := scaled_to(cell.config))})
    scaled = "".join(f"scaled to {size_label(size)} parameters\n" for size in sizes)
    return f"{scaled}{shared}{max(cell.config['steps'] for cell in cells):,} steps"


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


def _loss_panel(ax: Axes, drawn: list[_Drawn], missing: list[str], note: str) -> None:
    """Draw training loss over tokens: raw values faint, smoothed strands, their mean and band.

    A run that diverged or is unfinished is drawn by itself up to its last finite row, which is
    marked; the step is in the corner that loss curves leave free, under it the note. A curve that
    leaves the axis at the top is named there with its end.
    """
    curves = [each.curve for each in drawn]
    low, high = _limits(curves)
    corner = [
        (f"{each.line.label}: {words}", each.line.color)
        for each in drawn
        for words in _ends(each.curve)
    ]
    corner += [(line, QUIET) for line in [*note.split("\n"), *_cut_off(curves, high)]]
    for each in drawn:
        _draw(ax, each, high)
        for strand in each.curve.others:
            _mark_end(ax, strand, each.line.color, high)
    for label in missing:
        ax.plot([], [], linestyle="none", label=label)
    ax.set_xlim(0, max(curve.planned_tokens for curve in curves) * 1.02)
    ax.set_ylim(low, high)
    ax.xaxis.set_major_formatter(EngFormatter(places=None, sep=""))
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set(xlabel="training tokens", ylabel="training loss (nats)")
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
        words.append(f"diverged at {at}" if status == DIVERGED else f"{status}, {at}")
    return words


def _cut_off(curves: list[Curve], top: float) -> list[str]:
    """Say where the curves come from, if that is above the axis."""
    strands = list(chain.from_iterable(curve.strands for curve in curves))
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


def _label(drawn: _Drawn, top: float) -> str:
    curve = drawn.curve
    diverged = sum(s.status == DIVERGED for s in curve.others)
    parts = [f"n={len(curve.strands)}"]
    counts = {"diverged": diverged, "unfinished": len(curve.others) - diverged}
    parts += [f"{count} {words}" for words, count in counts.items() if count]
    end = ""
    if curve.finished and curve.last > top:
        peak = max(s.smooth.max() for s in curve.finished)
        end = f"\n↑ off the axis: ends at {curve.last:.3g}, peak {peak:.3g}"
    return f"{drawn.line.label} ({', '.join(parts)}){end}"


def _draw(ax: Axes, drawn: _Drawn, top: float) -> None:
    curve, color = drawn.curve, drawn.line.color
    for strand in curve.strands:
        x, y = envelope(strand.tokens, strand.raw, _POINTS_RAW)
        ax.plot(x, y, color=color, linewidth=0.4, alpha=0.16, zorder=1)
    label = _label(drawn, top)
    if curve.finished:
        mean = mean_over_seeds(curve.finished)
        rows = _thin(len(mean.tokens))
        if len(curve.finished) > 1:
            low, high, x = mean.low[rows], mean.high[rows], mean.tokens[rows]
            ax.fill_between(x, low, high, color=color, alpha=0.22, linewidth=0, zorder=2)
        ax.plot(mean.tokens[rows], mean.middle[rows], label=label, zorder=3, **drawn.style)
        label = None
        if curve.last > top:
            edge = {"marker": "^", "markersize": 6, "linestyle": "none", "clip_on": False}
            ax.plot(mean.tokens[-1:], [top], color=color, zorder=5, **edge)
    for strand in curve.others:
        rows = _thin(len(strand.tokens))
        x, y = strand.tokens[rows], strand.smooth[rows]
        ax.plot(x, y, label=label, zorder=3, linewidth=1.1, **drawn.style)
        label = None


def _thin(count: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, _POINTS_SMOOTH)).astype(int))


def _mark_end(ax: Axes, strand: Strand, color: str, top: float) -> None:
    """Mark where a run stopped: a cross in its colour where it diverged, else a ring."""
    diverged = strand.status == DIVERGED
    look = {"marker": "X" if diverged else "o", "markersize": 6.5 if diverged else 4.5}
    look["markerfacecolor"], look["markeredgecolor"] = (
        (color, "white") if diverged else ("white", color)
    )
    ends = [strand.tokens[-1]], [min(strand.smooth[-1], top)]
    ax.plot(*ends, linestyle="none", clip_on=False, zorder=5, **look)
