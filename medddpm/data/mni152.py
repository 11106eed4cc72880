"""The MNI152 template (Fonov et al. 2011), of which synthetic subjects are made: nilearn's ICBM152 2009 at 1 mm."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CENTRE = np.array([0.0, -16.0, 6.0])  # the brain's, in MNI space, mm


def mni152_maps() -> tuple[list[npt.NDArray[np.float32]], npt.NDArray[np.float64]]:
    """Returns grey matter, white matter and the brain mask, each (197, 233, 189) in [0, 1], and their affine."""
    from nilearn import datasets

    loaders = (datasets.load_mni152_gm_template, datasets.load_mni152_wm_template, datasets.load_mni152_brain_mask)
    images = [load(resolution=1) for load in loaders]
    return [image.get_fdata(dtype=np.float32).clip(0, 1) for image in images], np.asarray(images[0].affine, np.float64)
