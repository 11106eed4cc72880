"""The look of every figure: colours, fonts, and how a figure is saved."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import GraphicsContextBase
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.path import Path as Line
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import IdentityTransform, Transform

from medddpm.runtime.files import replacing
from study.figures.legible import faults
from study.figures.narrow import narrow

GRID = 2.0**20  # of its points, in a pixel

Array = npt.NDArray[np.floating]

SAYS = "says: "  # begins the id of a mark with words
PRINT_WIDTH = 7.0  # inches: two columns of an ACM page

# A palette for each meaning. Within one any two colours can be told apart by readers of any colour vision, which the
# tests check by simulation; the order is that of every legend.
# Settings: Okabe & Ito's colours.
SETTING_COLOURS = {"BASE": "#4D4D4D", "OPT1": "#0072B2", "OPT2": "#E69F00", "OPT12": "#009E73", "FAST": "#D55E00"}
# What a kernel does. Convolution's products have one hue: together they are what the paper calls one kernel's share.
KIND_COLOURS = {
    "convolution, forward": "#0B258E",
    "convolution, input gradient": "#466BE5",
    "convolution, weight gradient": "#9DC2FC",
    "convolution, other": "#E9EEF6",
    "matmul": "#D1B806",
    "normalization": "#860F08",
    "pointwise": "#E07546",
    "layout": "#AF4EA1",
    "resampling": "#2DE08D",
    "reduction": "#5B6C52",
    "update": "#292327",
    "other": "#A3A7A6",
}
# Classes of instructions: out of Paul Tol's muted scheme.
CLASS_COLOURS = {
    "Floating Point": "#332288",
    "Integer": "#88CCEE",
    "Load/Store": "#44AA99",
    "Uniform Datapath": "#AA4499",
    "other classes": "#DDDDDD",
}
# Phases of a step lie behind what is drawn, and are pale.
PHASE_COLOURS = {"convert": "#FBD9A6", "forward": "#FFFFFF", "backward": "#E4E4E4", "update": "#BFBFBF"}
# Who wrote a kernel, and in the order of its columns whose machine ran it: out of Paul Tol's schemes.
VERSION_COLOURS = {"by hand": "#004488", "Triton": "#BB5566", "library": "#DDAA33"}
MACHINE_COLOURS = ("#777777", "#66CCEE", "#332288", "#DDCC77")
PRECISION_COLOURS = {"fp32": "#225566", "bf16": "#DDAA33"}
# The paper's window and the whole step, light and dark: in grey too they differ.
VIEW_COLOURS = {"window": "#F0A860", "step": "#1F3A6E"}
# Sets of volumes, held-out heads first.
SET_COLOURS = ("#555555", "#0077BB", "#EE7733", "#33BBAA", "#CC3377")
# Layers of the network, whose boxes say what they are besides.
LAYER_COLOURS = {
    "convolution": "#DADDE2",
    "residual": "#8FB8F0",
    "attention": "#F0E442",
    "down": "#E58A6B",
    "up": "#2AA58C",
    "output": "#DADDE2",
}

# Options of seaborn: bars with a line from the lowest run to the highest, and the paper's marks, which are hollow.
BARS: dict[str, Any] = {
    "saturation": 1,
    "edgecolor": "black",
    "linewidth": 0.4,
    "errorbar": ("pi", 100),
    "err_kws": {"color": "black", "linewidth": 1},
}
PAPER_MARKS: dict[str, Any] = {"facecolor": "none", "edgecolor": "black", "linewidth": 0.9, "s": 25, "zorder": 3}
# Points side by side in a row, so that none hides another, with a line from the lowest run to the highest.
POINTS: dict[str, Any] = {
    "linestyle": "none",
    "dodge": 0.66,
    "markersize": 4.5,
    "markeredgewidth": 0.9,
    "errorbar": ("pi", 100),
    "err_kws": {"linewidth": 1.2},
    "legend": False,
}
ARROW = 14  # points: how far the arrow of a bound reaches
ARROW_STYLE = {"arrowstyle": "<|-", "color": "black", "shrinkA": 0, "shrinkB": 3, "mutation_scale": 7}
CARD_MARKERS = {"V100": "v", "A100": "s", "H100": "o"}  # the paper's
VIEW_MARKERS = {"window": "o", "step": "D"}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine draws the same
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "svg.hashsalt": "medddpm",
}


def use_style() -> None:
    """Sets the book's style for everything drawn afterwards."""
    mpl.rcParams.update(STYLE)


class Drawing(Figure):
    """A figure with a sentence for readers who cannot see it; a notebook stores it with the picture."""

    alt = ""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        SteadyCanvas(self)  # it becomes the figure's own

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns no picture, which IPython makes itself, but the metadata to store beside it."""
        return {}, {"image/png": {"alt": self.alt}} if self.alt else {}


def new_figure(height: float, width: float = PRINT_WIDTH) -> Drawing:
    """Returns an empty figure in the book's style, sizes in inches, laid out so that nothing overlaps.

    It is made without pyplot, so that a notebook shows it once, where it is returned.
    """
    use_style()
    return Drawing(figsize=(width, height), layout="constrained")


def name_rows(axis: Axes, names: Sequence[str], room: int | None = None) -> None:
    """Names rows 0, 1, … from the top down, without ticks, with room for so many rows, by default for these."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim((room or len(names)) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)


def source_palette(sources: Sequence[str]) -> dict[str, str]:
    """Returns a colour for each "card, view", in a legend's order: windows before steps, each further card paler.

    Args:
        sources: as "H100, window".
    """
    known = set(sources)
    cards = list(dict.fromkeys(source.split(", ")[0] for source in sources))
    palette = {}
    for view, colour in VIEW_COLOURS.items():
        for place, card in enumerate(cards):
            white = place / len(cards)
            red, green, blue = (white + (1 - white) * part for part in to_rgb(colour))
            palette[f"{card}, {view}"] = to_hex((red, green, blue))
    return {source: colour for source, colour in palette.items() if source in known}


def source_marks(sources: Iterable[str]) -> dict[str, Any]:
    """Returns seaborn's `hue_order`, `palette` and `markers`: black by card for the paper, by card and view for ours.

    Args:
        sources: as "paper, H100" or "H100, window"; the paper's come first, by the age of their cards.
    """
    known = list(sources)
    paper = {f"paper, {card}": marker for card, marker in CARD_MARKERS.items() if f"paper, {card}" in known}
    palette = source_palette([source for source in known if source not in paper])
    ours = {source: VIEW_MARKERS[source.split(", ")[1]] for source in known if source in palette}
    palette = dict.fromkeys(paper, "black") | {source: palette[source] for source in ours}
    return {"hue_order": list(palette), "palette": palette, "markers": list((paper | ours).values())}


def finish_points(
    figure: Figure, marks: Mapping[str, Any], unit: str = "", at_least: Collection[tuple[str, str, float]] = ()
) -> None:
    """Finishes panels of `sns.pointplot`: hollow marks for the paper, lines between rows, a legend, words as of `say`.

    Args:
        figure: its panels share their rows, whose names stand at the first.
        marks: of `source_marks`, with which all were drawn.
        unit: follows each value in the words.
        at_least: source, row and value of marks that are lower bounds, which get an arrow.
    """
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    sources = marks["hue_order"]
    for axis in figure.axes:
        lines = [line for line in axis.lines if line.get_marker() not in ("None", "", None)]
        for source, line in zip(sources, lines, strict=True):
            line.set_markerfacecolor("none" if source.startswith("paper") else line.get_color())
            places = [(float(x), float(y)) for x, y in np.asarray(line.get_xydata()) if np.isfinite(x)]
            bounds = [(x, y) for x, y in places if (source, rows[round(y)], x) in at_least]
            for place in bounds:
                axis.annotate("", place, (ARROW, 0), textcoords="offset points", arrowprops=ARROW_STYLE)
            more = dict.fromkeys(bounds, "more than ")
            values = [f"{rows[round(y)]} {more.get((x, y), '')}{x:.3g}{unit}" for x, y in places]
            if values:  # an empty line has no place, and counts as one in the figure's corner if it is not clipped
                line.set_clip_on(False)
                say(line, f"{source}: {', '.join(values)}")
        for border in range(1, len(rows)):
            axis.axhline(border - 0.5, color="#DDDDDD", linewidth=0.6, zorder=0)
        axis.grid(axis="x", linewidth=0.3)
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(len(rows) - 0.5, -0.5)
    keys = [
        Line2D([], [], color=marks["palette"][source], marker=marker, linestyle="none", markersize=4.5, label=source)
        for source, marker in zip(sources, marks["markers"], strict=True)
    ]
    for key in keys:
        key.set_markerfacecolor("none" if str(key.get_label()).startswith("paper") else key.get_color())
    figure.legend(handles=keys, loc="outside upper center", ncols=len(keys), handletextpad=0.1, columnspacing=1.2)


def plain_logarithms(axis: Axis) -> None:
    """Gives a logarithmic axis plain numbers at 1, 2 and 5 of each decade, or at the decades where there are many."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1,) if high / low > 30 else (1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def say(mark: Artist, words: str) -> None:
    """Makes a saved SVG show `words` when a reader points at the mark."""
    mark.set_gid(SAYS + words)


def say_bars(axis: Axes, sources: Iterable[str], rows: Sequence[str], more: Mapping[tuple[str, str, str], str]) -> None:
    """Makes each bar of `sns.barplot` show its source, its row and its value in percent, as `say` does.

    Args:
        axis: holds the bars, one container a source.
        sources: the values of `hue`, in the order of `hue_order`; as for `source_palette`.
        rows: the values of `y`, in the order of `order`.
        more: words that follow the value, by card, view and row.
    """
    for source, bars in zip(sources, axis.containers, strict=True):
        card, view = source.split(", ")
        for row, bar in zip(rows, bars, strict=True):
            words = f"{source}: {row} {bar.get_width():.3g}%"
            following = more.get((card, view, row))
            say(bar, f"{words}: {following}" if following else words)


def say_stack(axis: Axes, title: str, rows: Sequence[str]) -> None:
    """Makes each part of pandas' stacked bars show the title, its row, its column and its value, as `say` does."""
    for bars in axis.containers:
        for row, bar in zip(rows, bars, strict=True):
            say(bar, f"{title}: {row}, {bars.get_label()} {bar.get_width():.2f}")


def save_figure(figure: Figure, name: str, folder: str | os.PathLike[str], alt: str = "") -> list[Path]:
    """Writes NAME.png and NAME.svg, the same bytes each time for the same figure; with `alt` NAME.narrow.svg too.

    The last is for phones, and is left out where texts cannot be read in it (`study.figures.narrow`).

    Args:
        figure: the one to save; it stores `alt`.
        name: of the files.
        folder: of the files.
        alt: a sentence for readers who cannot see the figure; both files and the page carry it. With it, a warning
            names texts that cannot be read.
    """
    if alt and isinstance(figure, Drawing):
        figure.alt = alt
    small = narrow(figure) if alt else None
    files = [(figure, name + ".png"), (figure, name + ".svg")] + ([(small, name + ".narrow.svg")] if small else [])
    if not small:
        (Path(folder) / f"{name}.narrow.svg").unlink(missing_ok=True)
    for drawing, file in files:
        said = {"Description": alt} if alt else {}
        metadata = {"Date": None, "Creator": None} if file.endswith(".svg") else {"Software": None}
        title = {"Title": alt} if alt and file.endswith(".svg") else {}
        with replacing(Path(folder) / file) as temporary, mpl.rc_context(STYLE):
            drawing.savefig(temporary, metadata=metadata | said | title)
            if file.endswith(".svg"):
                text = re.sub(f'<g id="{SAYS}([^"]*)">', r"<g><title>\1</title>", temporary.read_text(encoding="utf-8"))
                temporary.write_text(_with_numbered_clips(text), encoding="utf-8")
    for fault in faults(figure, PRINT_WIDTH) if alt else ():  # once it is saved: drawing it moves what is laid out
        warnings.warn(f"{name}: {fault}", stacklevel=2)
    return [Path(folder) / file for _, file in files]


def _with_numbered_clips(svg: str) -> str:
    """Names clips by their order: Matplotlib's names are hashes of sizes, whose last bits differ between runs."""
    names = {name: f"clip{i}" for i, name in enumerate(dict.fromkeys(re.findall(r"url\(#(p[0-9a-f]{10})\)", svg)), 1)}
    return re.sub(r"(?<=[#\"])p[0-9a-f]{10}(?=[)\"])", lambda match: names.get(match[0], match[0]), svg)


class SteadyCanvas(FigureCanvasAgg):
    """Draws lines through points on a grid of 2⁻²⁰ pixels.

    Logarithms and sums differ in their last bit from CPU to CPU. Where three points lie on one straight line, that
    bit decides on which side Agg rounds the join, and some pixels come out otherwise. The grid drops the bit.
    """

    renderer: RendererAgg | None = None

    def get_renderer(self) -> RendererAgg:
        """Returns the renderer; makes a new one when size or resolution has changed."""
        size, dpi = self.get_width_height(physical=True), self.figure.dpi
        if self.renderer is None or (self.renderer.width, self.renderer.height, self.renderer.dpi) != (*size, dpi):
            self.renderer = _SteadyRenderer(*size, dpi)  # type: ignore[no-untyped-call]
        return self.renderer


class _SteadyRenderer(RendererAgg):
    def draw_path(self, gc: GraphicsContextBase, path: Line, transform: Transform, rgbFace: Any = None) -> None:
        moved = Line(np.round(transform.transform(path.vertices) * GRID) / GRID, path.codes)
        moved.should_simplify = path.should_simplify
        super().draw_path(gc, moved, IdentityTransform(), rgbFace)  # type: ignore[no-untyped-call]
