"""A case, which is one subject's files, and the contents of a data folder, as a reader returns them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nibabel as nib
import numpy as np
import numpy.typing as npt

from medddpm.data.layouts import BRATS, Layout
from medddpm.data.masks import prepared
from medddpm.data.nifti import digest_of, read_frames, read_image, read_mask
from medddpm.errors import BadInput


@dataclass(frozen=True)
class Case:
    """One subject.

    Args:
        name: tells it from the other cases of its folder.
        images: a file for each of `Layout.image_folders`. One 4-D file may stand for several channels.
        mask: the labels.
        frames: for each channel, the place of its volume in its 4-D file; empty where every file is 3-D.
        labels: the layout's label for each label that the mask may hold besides 0; None where they are the layout's.
        by_part: whether its files were paired by a part of their names alone, or by their folder alone.
    """

    name: str
    images: tuple[Path, ...]
    mask: Path
    frames: tuple[int, ...] = ()
    labels: Mapping[int, int] | None = None
    by_part: bool = False

    def read_labels(self, layout: Layout) -> nib.Nifti1Image:
        """Reads the mask; returns it with the layout's labels, its voxels in memory as uint8 (H, W, D).

        Raises:
            BadInput: as `read_mask`.
        """
        if self.labels is None:
            return read_mask(self.mask, layout.labels)
        mask = read_mask(self.mask, self.labels)
        meant = np.zeros(256, np.uint8)
        for stored, label in self.labels.items():
            meant[stored] = label
        return type(mask)(meant[np.asarray(mask.dataobj)], mask.affine, mask.header)

    def prepared(
        self, mask: nib.Nifti1Image, layout: Layout, images: Sequence[nib.Nifti1Image]
    ) -> npt.NDArray[np.uint8]:
        """Returns the labels (H, W, D) in the published preparation, as `medddpm.data.masks.prepared` does.

        Args:
            mask: as `read_labels` gives it.
            layout: the case's.
            images: the modalities available.

        Raises:
            BadInput: as `prepared`; or label 4 is neither the brain nor, as `labels` say, the enhancing tumour.
        """
        labels = prepared(self.mask, mask, layout, images)
        if self.labels is not None and layout == BRATS:
            fourth = np.asarray(mask.dataobj) == BRATS.labels[-1]
            if fourth.any() and not np.array_equal(labels[fourth], np.asarray(mask.dataobj)[fourth]):
                problem = "its label 4 is not the brain, and by the data set's names not the enhancing tumour either"
                raise BadInput(self.mask, problem, "relabel it: 1 necrosis, 2 oedema, 3 enhancing tumour")
        return labels

    def read_images(self, path: Path) -> list[nib.Nifti1Image]:
        """Reads the channels that lie in `path`, one of `images`; returns them in channel order.

        Raises:
            BadInput: as `read_image`; or a 4-D file has no volume at one of `frames`.
        """
        if not self.frames:
            return [read_image(path)]
        return read_frames(path, [frame for file, frame in zip(self.images, self.frames, strict=True) if file == path])

    def files(self) -> list[Path]:
        """Returns the image files, each once."""
        return list(dict.fromkeys(self.images))

    def digest(self) -> str:
        """Returns a string that changes with the content of the files, the frames and the labels."""
        parts = [digest_of([self.mask, *self.files()])]
        if self.frames:
            parts.append("frames " + " ".join(map(str, self.frames)))
        if self.labels is not None and any(stored != label for stored, label in self.labels.items()):
            parts.append("labels " + " ".join(f"{stored}={label}" for stored, label in sorted(self.labels.items())))
        return " ".join(parts)


@dataclass
class Contents:
    """The cases that a reader recognizes in a data folder, and what is wrong there.

    Args:
        root: the folder, or the CSV.
        reader: the arrangement of its files, for messages.
        layout: the meaning of its channels and labels.
        cases: the complete cases.
        problems: one for each file that should belong to a case and does not.
        partial: incomplete cases: a mask, and the images that exist.
        loose: the files without a partner.
        notes: remarks that do not prevent training.
        places: the folders in which every volume should be read.
        place_remedy: what to do about a volume in `places` that is not read.
    """

    root: Path
    reader: str
    layout: Layout
    cases: list[Case]
    problems: list[BadInput] = field(default_factory=list)
    partial: list[Case] = field(default_factory=list)
    loose: list[Path] = field(default_factory=list)
    notes: list[BadInput] = field(default_factory=list)
    places: tuple[Path, ...] = ()
    place_remedy: str = ""

    def complete(self) -> list[Case]:
        """Returns the cases if there are no problems.

        Raises:
            BadInput: there are problems; the message names the first five.
        """
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            named = ", ".join(os.path.relpath(problem.path, self.root) for problem in self.problems[:5])
            more = f" and {len(self.problems) - 5} more" if len(self.problems) > 5 else ""
            remedy = "add the missing files or remove these; `medddpm check` explains each"
            raise BadInput(self.root, f"{len(self.problems)} files cannot be paired: {named}{more}", remedy)
        return self.cases

    def summary(self) -> BadInput | None:
        """Returns all notes in one line, or None if there are none."""
        if len(self.notes) < 2:
            return self.notes[0] if self.notes else None
        problems = "; ".join(note.problem for note in self.notes)
        return BadInput(self.root, problems, "`medddpm check` says of each what to do")
