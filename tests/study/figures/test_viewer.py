"""The viewer shows the volume that it was given, the same each time, for few kilobytes."""

from __future__ import annotations

import base64
import io
import json
import re
from html import unescape
from pathlib import Path

import nibabel
import numpy as np
import pytest
from helpers.browser import browser, needs_browser
from matplotlib import image as pictures
from scipy import ndimage

from medddpm.data.phantom import phantom_subject
from study.figures.viewer import Viewer, show_volume


@pytest.fixture(scope="module")
def subject():
    return phantom_subject(0, (32, 36, 28))


def sprite(shown: Viewer, which: str) -> np.ndarray:
    """Red, green and blue of the picture that holds all sagittal slices side by side, row by row."""
    coded = re.search(rf'id="{which}-v"[^>]*src="data:image/png;base64,([^"]+)"', shown.page)
    assert coded
    return pictures.imread(io.BytesIO(base64.b64decode(coded[1])))[..., :3]


def sagittal(picture: np.ndarray, depth: int, height: int, width: int) -> np.ndarray:
    """The slices in a sprite: (depth, width, height, 3), axes as of the volume."""
    columns = picture.shape[1] // width
    places = [divmod(index, columns) for index in range(depth)]
    slices = [picture[height * row : height * (row + 1), width * at : width * (at + 1)] for row, at in places]
    return np.stack(slices)[:, ::-1].transpose(0, 2, 1, 3)  # they stand upright


def test_what_is_shown_is_the_volume_with_the_lesion_s_outline(subject) -> None:
    volume, lesion = nibabel.Nifti1Image(subject.flair, np.diag([2, 2, 2, 1])), subject.labels == 2
    plain = sagittal(sprite(show_volume(volume), "overlayImg"), 32, 28, 36)
    assert np.abs(plain - np.clip(subject.flair, 0, 1)[..., None]).max() < 0.5 / 63 + 1 / 255
    outlined = sagittal(sprite(show_volume(volume, lesion), "overlayImg"), 32, 28, 36)
    changed = (outlined != plain).any(axis=3)
    assert changed.any()
    assert lesion[changed].all()
    assert np.array_equal(changed, lesion & ~ndimage.binary_erosion(lesion))


def test_the_same_volume_gives_the_same_page_another_does_not(subject) -> None:
    page = show_volume(subject.flair).page
    assert page == show_volume(subject.flair.copy()).page
    assert page != show_volume(subject.t1).page


def test_it_needs_nothing_from_outside_and_few_kilobytes(subject) -> None:
    """No script, style or picture is fetched; and a large volume is brought to what a notebook can bear."""
    shown = show_volume(subject.flair, subject.labels == 2)
    assert re.findall(r"<(?:script|img|iframe)[^>]*src=\"(?!data:)", shown.page) == []
    assert re.findall(r"<link[^>]*stylesheet", shown.page) == []
    assert "brainsprite(" in shown.page
    assert shown.kilobytes < 100
    large = np.random.default_rng(0).random((160, 160, 130), np.float32)  # noise compresses worst
    assert show_volume(large).kilobytes < 500


def test_it_opens_at_the_lesion_and_reads_files(subject, tmp_path: Path) -> None:
    lesion = subject.labels == 2
    shown = show_volume(subject.flair, lesion, title="a < b")
    counts = lesion.sum(axis=(1, 2))
    opened = int(re.search(r'"numSlice": {"X": (\d+)', shown.page)[1])
    assert counts[opened] == counts.max()
    path = tmp_path / "v.nii.gz"
    nibabel.save(nibabel.Nifti1Image(subject.flair, np.eye(4)), path)
    assert show_volume(path).page == show_volume(subject.flair).page
    assert "<b" not in re.sub(r"<body", "", show_volume(subject.flair, title="<b>")._repr_html_())


HOSTILE = (
    "</title><script>document.title = 'ran'</script>",
    "<img src=x onerror=alert(1)>",
    "</script><b>",
    "\" ' & é",
)


@pytest.mark.parametrize("title", HOSTILE)
def test_html_in_a_title_is_text(title: str, subject) -> None:
    """It stands in the markup and in a script, which draws it."""
    page = show_volume(subject.flair, title=title).page
    plain = show_volume(subject.flair, title="plain").page
    assert page.count("<") == plain.count("<"), "an element or an end of one came with the title"
    assert unescape(re.search(r"<title>(.*?)</title>", page)[1]).endswith(title)
    assert json.JSONDecoder().raw_decode(page.partition('"title": ')[2])[0] == title


def test_the_frame_has_an_origin_of_its_own(subject) -> None:
    frame = re.match(r"<iframe ([^>]*?)srcdoc=", show_volume(subject.flair)._repr_html_())
    assert frame[1].split() == ['sandbox="allow-scripts"']


def test_a_title_does_not_move_a_terminal_s_cursor(subject) -> None:
    assert repr(show_volume(subject.flair, title="a\x1b[2Jb\n")).isprintable()


@needs_browser
def test_a_browser_shows_the_volume_and_runs_no_title(subject) -> None:
    shown = show_volume(subject.flair, title=HOSTILE[0])._repr_html_()
    with browser() as chromium:
        page = chromium.new_page()
        page.set_content(f"<title>outer</title>{shown}")
        frame = page.frames[1]
        frame.wait_for_function("document.querySelector('canvas') && document.querySelector('canvas').width > 100")
        has_greys = "() => { const c = document.querySelector('canvas');"
        has_greys += (
            "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0 && v < 255) }"
        )
        frame.wait_for_function(has_greys)
        assert HOSTILE[0] in frame.title()
        assert (
            frame.evaluate("() => { try { return parent.document.title } catch (e) { return e.name } }")
            == "SecurityError"
        )


@pytest.mark.filterwarnings("error")
def test_voxels_need_not_be_cubes_nor_axes_ras(subject) -> None:
    turned = nibabel.Nifti1Image(subject.flair, np.diag([2.0, 1.5, 3.0, 1.0]))
    flipped = nibabel.as_closest_canonical(turned).as_reoriented(np.array([[2, 1], [0, -1], [1, 1]]))
    for image in (turned, flipped):
        assert sprite(show_volume(image), "overlayImg").std() > 0.1


def test_what_is_no_volume_is_refused(subject) -> None:
    with pytest.raises(ValueError, match="shape"):
        show_volume(subject.flair[0])
    with pytest.raises(ValueError, match="lesion"):
        show_volume(subject.flair, subject.labels[:4] == 2)
