"""A canvas whose pixels do not depend on the CPU that computed the coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backend_bases import GraphicsContextBase
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform, Transform

POINTS = 2.0**20  # of the grid, in a pixel


class SteadyCanvas(FigureCanvasAgg):
    """Draws lines through points on a grid of 2⁻²⁰ pixels.

    Logarithms and sums differ in their last bit from CPU to CPU. Where three points lie on one straight line, that
    bit decides on which side Agg rounds the join, and some pixels come out otherwise. The grid drops the bit.
    """

    renderer: RendererAgg | None = None

    def get_renderer(self) -> RendererAgg:
        """Returns the renderer, made anew when size or resolution changed."""
        size, dpi = self.get_width_height(physical=True), self.figure.dpi
        if self.renderer is None or (self.renderer.width, self.renderer.height, self.renderer.dpi) != (*size, dpi):
            self.renderer = _SteadyRenderer(*size, dpi)  # type: ignore[no-untyped-call]
        return self.renderer


class _SteadyRenderer(RendererAgg):
    def draw_path(self, gc: GraphicsContextBase, path: Path, transform: Transform, rgbFace: Any = None) -> None:
        moved = Path(np.round(transform.transform(path.vertices) * POINTS) / POINTS, path.codes)
        moved.should_simplify = path.should_simplify
        super().draw_path(gc, moved, IdentityTransform(), rgbFace)  # type: ignore[no-untyped-call]
