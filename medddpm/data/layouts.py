"""The kinds of data that models are trained on, with their channels and labels.

Med-DDPM is published for two of them (Dorjsembe et al. 2024), and data folders come in these alone; the third is that
of synthetic heads in three contrasts at once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """The meaning of the channels of a data set's images and of the labels of its masks.

    `medddpm.data.readers` finds the files of a case.

    Args:
        name: for messages.
        image_folders: the image channels, in order; in the published form each has a folder of that name.
        mask_folder: the published folder of the label masks.
        labels: the mask's labels besides 0, in channel order.
        mask_values: a mask channel's values off and on its label.
        axes: where the array axes point on the model's grid (`medddpm.data.grid`).
    """

    name: str
    image_folders: tuple[str, ...]
    mask_folder: str
    labels: tuple[int, ...]
    mask_values: tuple[float, float]
    axes: str = "RAS"

    @property
    def image_channels(self) -> int:
        """The number of image channels."""
        return len(self.image_folders)

    @property
    def mask_channels(self) -> int:
        """The number of channels of the condition: one for each label."""
        return len(self.labels)

    @property
    def left_right(self) -> int:
        """The dimension of a volume's tensor (…, D, W, H), counted from the end, that runs between left and right."""
        return -1 - next(place for place, axis in enumerate(self.axes) if axis in "LR")

    @property
    def folders(self) -> tuple[str, ...]:
        """All published folders of the layout, the mask's first."""
        return (self.mask_folder, *self.image_folders)


HEAD = Layout("whole head", ("image",), "mask", (1, 2), (-1.0, 1.0))
"""Labels: 1 brain, 2 tumour."""

BRATS = Layout("BraTS", ("t1", "t1ce", "t2", "flair"), "seg", (1, 2, 3, 4), (0.0, 1.0), axes="LPS")
"""Labels: 1 necrosis and non-enhancing tumour, 2 oedema, 3 enhancing tumour, 4 the rest of the brain.

BraTS comes in LPS, and the published model was trained on that.
"""

JOINT = Layout("three-contrast head", ("t1", "t2", "flair"), HEAD.mask_folder, HEAD.labels, HEAD.mask_values)
"""T1, T2 and FLAIR of one head, for the masks of the whole-head layout."""

PUBLISHED = (HEAD, BRATS)
"""The layouts of data folders."""

LAYOUTS = (*PUBLISHED, JOINT)
