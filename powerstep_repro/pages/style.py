"""How every figure looks: one colour and one line style an optimizer, and files that repeat.

Colours are those of Okabe and Ito, told apart with any colour vision; line styles tell the curves
of a panel apart in grey. A ``_released`` optimizer is a darker shade of the plain one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib import colors as mcolors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Dash = tuple[int, tuple[float, ...]] | str
SOLID, DASHED, DOTTED = "-", (0, (4.5, 1.6)), (0, (1.2, 1.2))
DASHDOT, LONG, TWODOT = (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (4, 1.2, 1, 1.2, 1, 1.2))

#: Optimizer -> (colour, line style).
OPTIMIZERS: dict[str, tuple[str, Dash]] = {
    "adamw": ("#000000", LONG),
    "powerstep": ("#D55E00", SOLID),
    "signsgd": ("#0072B2", DASHED),
    "adams": ("#009E73", DASHDOT),
    "pbsgdm": ("#CC79A7", DOTTED),
    "stacey": ("#56B4E9", TWODOT),
    "adamw_int8": ("#7A7A7A", DASHDOT),
    "powerstep_int8": ("#E69F00", DASHED),
    "adams_released": ("#005F45", DOTTED),
    "pbsgdm_released": ("#7F2F5F", TWODOT),
    "stacey_released": ("#1F6C98", DOTTED),
    "adamw_int8_released": ("#4A4A4A", TWODOT),
    "powerstep_int8_released": ("#8A5F00", DOTTED),
}
#: Line styles for curves of one optimizer that differ in a value.
VARIANTS: tuple[Dash, ...] = (SOLID, DASHED, DOTTED, DASHDOT, LONG, TWODOT)
#: Kind of parameter, as the mechanism's log has it -> (label, colour, line style).
KINDS: dict[str, tuple[str, str, Dash]] = {
    "token_embeddings_often": ("token embedding, frequent rows", "#D55E00", SOLID),
    "token_embeddings_seldom": ("token embedding, rare rows", "#E69F00", DASHED),
    "positions": ("positions", "#009E73", DASHDOT),
    "head": ("head", "#CC79A7", TWODOT),
    "matrices": ("matrices", "#0072B2", LONG),
    "gains": ("gains", "#7A7A7A", DOTTED),
}
_SPARE = ("#882255", DASHED)  # an optimizer that a user added

INK, QUIET, ALARM = "#222222", "#666666", "#A3122A"

_RC = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "legend.labelspacing": 0.3,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
    "text.color": INK,
    "text.parse_math": False,
    "pdf.fonttype": 42,
    "path.simplify": False,
    "savefig.dpi": 160,
    "figure.dpi": 160,
}


def of_optimizer(name: str) -> tuple[str, Dash]:
    """Return the colour and line style of an optimizer."""
    return OPTIMIZERS.get(name, _SPARE)


def shades(name: str, count: int) -> list[str]:
    """Return ``count`` colours from light to dark in the optimizer's own hue.

    For curves that differ in a value, such as six learning rates of one optimizer: the larger
    the value, the darker.
    """
    base = mcolors.to_rgb(of_optimizer(name)[0])
    if not any(base):  # black has no darker shade: end there, through grey
        light, base, dark = (0.76,) * 3, (0.42,) * 3, (0.0,) * 3
    else:
        dark, light = tuple(0.45 * c for c in base), tuple(1 - 0.5 * (1 - c) for c in base)
    out = []
    for index in range(count):
        t = index / (count - 1) if count > 1 else 0.5
        low, high, s = (light, base, 2 * t) if t <= 0.5 else (base, dark, 2 * t - 1)
        out.append(mcolors.to_hex([a + (b - a) * s for a, b in zip(low, high, strict=True)]))
    return out


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with our settings alone: a user's matplotlibrc changes nothing."""
    with matplotlib.rc_context():
        defaults = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"}
        matplotlib.rcParams.update(defaults)
        matplotlib.rcParams.update(_RC)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure with an Agg canvas, sizes in inches; no global state."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, stem: Path, suffixes: Sequence[str] = ("pdf", "png")) -> list[Path]:
    """Write a figure under ``stem`` in each format; whole or not at all, no date in the file.

    Two calls on equal figures give equal bytes.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix in suffixes:
        metadata = {"Software": None} if suffix == "png" else {"CreationDate": None}
        path = stem.with_name(f"{stem.name}.{suffix}")
        partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with house_style():
                figure.savefig(partial, format=suffix, metadata=metadata)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        written.append(path)
    return written
