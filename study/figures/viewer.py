"""A viewer of volumes that a stored notebook shows without a kernel.

It is nilearn's static one (brainsprite): a page of HTML with the volume in it. ipyniivue, which shows more
(volume rendering, drawing), is a widget: it asks a kernel for its volume, and a stored notebook shows nothing of it
unless the widget's state is stored too, volume and all; nbconvert and GitHub show neither. JupyterLab shows a page that
it trusts: one that it ran itself, or after File → Trust Notebook. GitHub shows no page,
so put slices beside a viewer (`slices.slice_rows`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

import nibabel as nib
import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap, to_rgb
from scipy import ndimage

from medddpm.errors import printable
from study.figures.style import SETTING_COLOURS
from study.parity.slices import where_most

Array = npt.NDArray[np.floating]

LARGEST = 64
"""The longest edge, in voxels, that is shown as it is: above it, cubes of voxels are averaged, to save kilobytes."""

_OUTLINE = SETTING_COLOURS["OPT2"]  # orange, which stands out of grey for any colour vision
_TITLE = "the-title-of-the-viewer"  # stands for it until nilearn's page is made
_GREYS = 64  # more than an eye tells apart beside each other, and two thirds of the bytes of 256


@dataclass(frozen=True)
class Viewer:
    """A page of HTML, shown by JupyterLab in a frame of `width` × `height` pixels."""

    page: str
    title: str
    width: int
    height: int

    @property
    def kilobytes(self) -> float:
        """Returns what it adds to a notebook's file, in kB of 1000 bytes."""
        return len(self._repr_html_().encode()) / 1000

    def _repr_html_(self) -> str:
        frame = f'width="{self.width}" height="{self.height}" style="border: 0"'
        # Of an origin of its own: whatever its scripts are, they reach neither the notebook nor its server.
        return f'<iframe sandbox="allow-scripts" srcdoc="{escape(self.page)}" {frame}></iframe>'

    def __repr__(self) -> str:
        return f"a viewer of {self.title}: click or drag to move through it; where it is not shown, trust the notebook"


def show_volume(
    volume: str | Path | nib.Nifti1Image | Array,
    lesion: npt.NDArray[np.bool_] | None = None,
    *,
    title: str = "the volume",
) -> Viewer:
    """Makes a page to click through a volume in three planes; a slider fades it. About 110 kB at 64³, and repeatable.

    Black is 0, and white 1. The page opens at the middle of the volume, or of the lesion.

    A cell that shows one is tagged `nbval-ignore-output`: a sample's last bits, and how its picture is compressed,
    differ from machine to machine.

    Args:
        volume: a NIfTI file or image, or (H, W, D) of axes RAS.
        lesion: (H, W, D), outlined in colour.
        title: shown above it, as it is written: of HTML in it the browser shows the text.

    Raises:
        ValueError: the volume is not three-dimensional, or the lesion has another shape.
    """
    from nilearn.plotting import view_img

    image = nib.load(volume) if isinstance(volume, str | Path) else volume
    if not isinstance(image, nib.Nifti1Image):
        image = nib.Nifti1Image(np.asarray(image, np.float32), np.eye(4))
    data = image.get_fdata(dtype=np.float32)
    if data.ndim != 3 or (lesion is not None and lesion.shape != data.shape):
        raise ValueError(f"volume of shape {data.shape}, lesion of {None if lesion is None else lesion.shape}")
    at = [n // 2 for n in data.shape] if lesion is None or not lesion.any() else where_most(lesion)
    cube = -(-max(data.shape) // LARGEST)
    shown = np.round(_averaged(np.clip(data, 0, 1), cube) * (_GREYS - 1))
    if lesion is not None:
        inside = _averaged(lesion.astype(np.float32), cube) > 0.5
        shown[inside & ~ndimage.binary_erosion(inside)] = _GREYS
    # A value in the middle of its colour's share of [0, 1]; resampled to cubic voxels, values must not mix.
    indexed = nib.Nifti1Image(((shown + 0.5) / (_GREYS + 1)).astype(np.float32), image.affine @ _coarser(cube))
    made = view_img(
        indexed,
        bg_img=nib.Nifti1Image(np.zeros(shown.shape, np.float32), indexed.affine),  # none would be uninitialised memory
        cut_coords=tuple((image.affine @ [*at, 1])[:3]),
        title=_TITLE,
        width_view=600,
        cmap=ListedColormap([*np.linspace([0, 0, 0], [1, 1, 1], _GREYS), to_rgb(_OUTLINE)]),
        vmin=0,
        vmax=1,
        symmetric_cmap=False,
        resampling_interpolation="nearest",
        threshold=None,
        colorbar=False,
        annotate=False,
        black_bg=True,
        dim=0,
    )
    title = printable(title)
    return Viewer(_titled(_repeatable(made.html), title), title, made.width, made.height)


def _titled(page: str, title: str) -> str:
    """nilearn's page with its title, which nilearn would put into the markup and into a script as it is."""
    in_script = json.dumps(title).replace("<", "\\u003c")
    return page.replace(f'"{_TITLE}"', in_script).replace(_TITLE, escape(title))


def _averaged(data: Array, cube: int) -> Array:
    """Means over cubes of voxels; a cube that the volume does not fill repeats its last voxels."""
    if cube == 1:
        return data
    padded = np.pad(data, [(0, -n % cube) for n in data.shape], mode="edge")
    h, w, d = (n // cube for n in padded.shape)
    return np.asarray(padded.reshape(h, cube, w, cube, d, cube).mean(axis=(1, 3, 5)))


def _coarser(cube: int) -> npt.NDArray[np.float64]:
    """The matrix from indices of cubes to those of voxels."""
    matrix = np.diag([cube, cube, cube, 1.0])
    matrix[:3, 3] = (cube - 1) / 2
    return matrix


def _repeatable(page: str) -> str:
    """nilearn's page without unused jQuery and without random names: its elements are alone in their frame."""
    if match := re.search(r"div_viewer-(\w+)", page):
        page = page.replace(match[1], "v")
    without = re.sub(r"<script>\s*/\*! jQuery.*?</script>", "", page, flags=re.DOTALL)
    return page if re.search(r"\$\(|\bjQuery\b", without) else without
