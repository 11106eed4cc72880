"""Says in a saved figure what its marks are: bars and curves get a <title>, which browsers show on hover.

What a mark says is read from the drawing itself: the legend names its colour, the axes' ticks give its values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

STACKS = ("fig04_dominant", "fig06_kernel_mix", "fig07_instruction_mix", "fig08_kernel_mix", "fig09_instruction_mix")
MARKED = (*STACKS, "fig08_window_start")
"""The figures whose marks are explained."""

SVG = "http://www.w3.org/2000/svg"
Element = ElementTree.Element
Tick = tuple[float, str]  # where on the page, and what is written there


def with_titles(text: str) -> str:
    """The drawing with a title on each bar and curve that the legend and the ticks explain."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    builder = ElementTree.TreeBuilder(insert_comments=True)
    root = ElementTree.fromstring(text, ElementTree.XMLParser(target=builder))
    names = dict(_legend(root))
    shared = next(
        (axis for axis in _groups(root, "matplotlib.axis_") if _labels(axis)), None
    )  # of panels above each other
    for axes in [a for a in _groups(root, "axes_") if len(_groups(a, "matplotlib.axis_")) == 2]:
        _explain(axes, names, shared)
    return ElementTree.tostring(root, encoding="unicode")


def _explain(axes: Element, names: dict[str, str], shared: Element | None) -> None:
    x_axis, y_axis = _groups(axes, "matplotlib.axis_")
    below = x_axis if _ticks(x_axis, "xtick_", 0) or shared is None else shared
    y_ticks = _ticks(y_axis, "ytick_", 1)
    x_value, y_value = _scale(_ticks(below, "xtick_", 0)), _scale(y_ticks)
    label = next(iter(_labels(below) or _labels(shared if shared is not None else below)), "")
    title = next(iter(_labels(axes)[::-1]), "")
    for group in [g for g in axes if g.get("id", "").startswith(("patch_", "line2d_"))]:
        path = group.find(f"{{{SVG}}}path")
        if path is None or not path.get("clip-path"):
            continue
        name = next((names[c] for c in _colours(path) if c in names), None)
        points = _points(path)
        left, right = (edge(x for x, _ in points) for edge in (min, max))
        if name and x_value and not y_value and y_ticks and len(points) < 6 and right - left > 0.05:
            middle = (min(y for _, y in points) + max(y for _, y in points)) / 2
            row = min(y_ticks, key=lambda tick: abs(tick[0] - middle))[1]
            value = f"{_number(x_value(right) - x_value(left))}{'%' if label.endswith('%') else ''}"
            _say(group, f"{title}{', ' if title else ''}{row}: {name} {value}")
        elif name and x_value and y_value and len(points) > 20:
            for (x, y), (after, _) in zip(points, [*points[1:], points[-1]], strict=True):
                strip = ElementTree.SubElement(axes, f"{{{SVG}}}rect", _strip(x, after, axes))
                _say(strip, f"{label.partition(',')[0]}: {x_value(x):.0f}; {title}: {_number(y_value(y))}")


def _strip(x: float, after: float, axes: Element) -> dict[str, str]:
    """An invisible rectangle as high as the axes, between a curve's point and the next."""
    frame = _points(next(iter(axes.iter(f"{{{SVG}}}path"))))
    top, bottom = min(y for _, y in frame), max(y for _, y in frame)
    shape = {"x": x, "y": top, "width": max(after - x, 0.3), "height": bottom - top}
    return {"fill": "transparent"} | {key: f"{value:.2f}" for key, value in shape.items()}


def _say(mark: Element, words: str) -> None:
    title = ElementTree.Element(f"{{{SVG}}}title")
    title.text = words
    mark.insert(0, title)


def _groups(parent: Element, prefix: str) -> list[Element]:
    return [g for g in parent.iter(f"{{{SVG}}}g") if g.get("id", "").startswith(prefix)]


def _legend(root: Element) -> Iterator[tuple[str, str]]:
    for legend in _groups(root, "legend_"):
        colours: list[str] = []
        for group in legend:
            if group.get("id", "").startswith("text_"):
                yield from ((colour, _written(group)) for colour in colours[:1])
                colours = []
            else:
                colours += [c for path in group.iter(f"{{{SVG}}}path") for c in _colours(path) if c != "#ffffff"]


def _colours(path: Element) -> list[str]:
    return re.findall(r"(?:fill|stroke): (#\w+)", path.get("style", ""))


def _points(path: Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))]


def _written(group: Element) -> str:
    return next((str(c.text).strip() for c in group.iter() if c.tag is ElementTree.Comment), "")


def _labels(parent: Element) -> list[str]:
    return [_written(group) for group in parent if group.get("id", "").startswith("text_")]


def _ticks(axis: Element, prefix: str, coordinate: int) -> list[Tick]:
    found = []
    for tick in _groups(axis, prefix):
        words = _written(tick)
        place = [
            float(use.get("xy"[coordinate], "nan"))
            for line in _groups(tick, "line2d_")
            for use in line.iter(f"{{{SVG}}}use")
        ]
        place += [
            float(at[coordinate])
            for g in tick.iter()
            for at in re.findall(r"translate\((\S+) (\S+)\)", g.get("transform", ""))
        ]
        if words:
            found.append((place[0], words))
    return found


def _scale(ticks: list[Tick]) -> Callable[[float], float] | None:
    """From a place on the page to a value; of a logarithmic axis too. None where the ticks are words."""
    try:
        known = [(place, float(words.replace("−", "-"))) for place, words in ticks]
    except ValueError:
        return None
    if len(known) < 2:
        return None
    (a, low), (b, high) = known[0], known[-1]
    middle, value = known[len(known) // 2]
    share = (middle - a) / (b - a)
    if abs(low + share * (high - low) - value) < 1e-3 * abs(high - low):
        return lambda place: low + (place - a) / (b - a) * (high - low)
    if min(low, high) > 0:
        return lambda place: low * math.exp((place - a) / (b - a) * math.log(high / low))
    return None


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2g}"
