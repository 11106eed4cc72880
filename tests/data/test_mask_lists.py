"""The masks that volumes are sampled for, and the names of the volumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from medddpm.data.mask_lists import Request, find_requests
from medddpm.errors import BadInput


@pytest.mark.parametrize(
    ("mask", "volume"),
    [
        ("case_7_seg.nii.gz", "case_7.nii.gz"),
        ("BraTS-GLI-00000-000-seg.nii.gz", "BraTS-GLI-00000-000.nii.gz"),
        ("sub-01_label-lesion_mask.nii", "sub-01_label-lesion.nii"),
        ("Case 7 Segmentation.nii.gz", "Case 7.nii.gz"),
        ("phantom_0000.nii.gz", "phantom_0000.nii.gz"),
        ("unmask.nii.gz", "unmask.nii.gz"),
        ("seg_7.NII.GZ", "seg_7.NII.GZ"),
        ("seg.nii.gz", "seg.nii.gz"),
        ("_seg.nii.gz", "_seg.nii.gz"),
    ],
)
def test_a_volume_has_its_masks_name(tmp_path: Path, mask: str, volume: str) -> None:
    (tmp_path / mask).touch()
    assert find_requests(tmp_path, tmp_path / "out") == [Request(tmp_path / mask, tmp_path / "out" / volume, (), 0)]


def test_what_a_folder_holds_beside_masks_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "medddpm")
    for name in ("a.nii.gz", "b.mha", "c.txt", "d.part", "e.nii.bz2", ".f.nii.gz"):
        (tmp_path / name).touch()
    (tmp_path / "g.nii").mkdir()
    requests = find_requests(tmp_path, tmp_path / "out", seed=3)
    assert [(each.mask.name, each.out.name, each.seed) for each in requests] == [
        ("a.nii.gz", "a.nii.gz", 3),
        ("b.mha", "b.nii.gz", 3),
    ]
    assert caplog.messages == [f"{tmp_path}: masks: 2; passed over, as no masks: 4 (c.txt, d.part, e.nii.bz2, …)"]


def test_of_a_case_s_own_folder_the_mask_is_drawn_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "medddpm")
    for word in ("flair", "seg", "t1", "t1ce", "t2"):
        (tmp_path / f"BraTS20_Training_001_{word}.nii.gz").touch()
    (request,) = find_requests(tmp_path, tmp_path / "out")
    assert request.out.name == "BraTS20_Training_001.nii.gz"
    assert "passed over, as no masks: 4 (BraTS20_Training_001_flair.nii.gz, " in caplog.text


def test_a_table_is_read_as_spreadsheets_write_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With a byte-order mark, quotes, lines without cells, rows that are cut short, and columns of the reader's own."""
    caplog.set_level("INFO", "medddpm")
    table = tmp_path / "masks.CSV"
    table.write_bytes(
        b'\xef\xbb\xbfMask,Age, Seed ,out,t1,flair\r\n"a, b_seg.nii.gz",70,5,,x/t1.nii,x/f.nii\r\n,,,,,\r\n'
        b"/else/c.nii.gz,71\r\nd.nii,72,,deep/e.nii.gz\r\n"
    )
    out = tmp_path / "out"
    assert find_requests(table, out, seed=9) == [
        Request(tmp_path / "a, b_seg.nii.gz", out / "a, b.nii.gz", (tmp_path / "x/t1.nii", tmp_path / "x/f.nii"), 5),
        Request(Path("/else/c.nii.gz"), out / "c.nii.gz", (), 9),
        Request(tmp_path / "d.nii", out / "deep" / "e.nii.gz", (), 9),
    ]
    assert caplog.messages == [f"{table}: columns that are not read: age"]


BAD_TABLES = {
    "nothing": (b"", "its first line is nothing"),
    "another mark": (b"mask|seed\na.nii;1\n", "it has no column mask: its first line is mask|seed"),
    "twice": (b"mask,mask\na.nii,b.nii\n", "its first line is mask,mask"),
    "no rows": (b"mask,seed\n", "it names no masks"),
    "no mask": (b"mask,seed\na.nii,1\n,2\n", "line 3 names no mask"),
    "a word": (b"mask,seed\na.nii,two\n", "line 2: 'two' is no seed; give a whole number from 0 to"),
    "a large seed": (b"mask,seed\na.nii,9223372036854775808\n", "is no seed"),
    "a negative seed": (b"mask,seed\na.nii,-1\n", "is no seed"),
    "another kind": (b"mask\na.png\n", "line 2: a.png: not a NIfTI name; end it in .nii or .nii.gz"),
    "another output": (b"mask,out\na.nii,b.png\n", "line 2: b.png: not a NIfTI name"),
    "a comma": (b"mask,seed\na,b.nii,1\n", "line 2 has more cells than the first; quote what has a comma in it"),
    "a quote": (b'mask\n"a.nii', "not a CSV"),
    "bytes": (b"mask\n\xff.nii\n", "not UTF-8 text"),
    "zeros": (b"mask\na\0.nii\n", "not a CSV (it holds a zero byte)"),
}


@pytest.mark.parametrize(("content", "problem"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_bad_table_is_said(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "masks.csv").write_bytes(content)
    with pytest.raises(BadInput) as refused:
        find_requests(tmp_path / "masks.csv", tmp_path / "out")
    assert str(refused.value).startswith(f"{tmp_path / 'masks.csv'}: ")
    assert problem in str(refused.value)


def test_a_table_is_read_within_a_limit(tmp_path: Path) -> None:
    with (tmp_path / "masks.csv").open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(BadInput, match="it has 1099511627776 bytes, and a file of this kind at most"):
        find_requests(tmp_path / "masks.csv", tmp_path / "out")


def test_names_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    masks, empty, data = tmp_path / "masks", tmp_path / "empty", tmp_path / "data"
    for folder in (masks, empty, data / "mask", data / "image"):
        folder.mkdir(parents=True)
    (masks / "a.nii.gz").touch()
    (tmp_path / "file").touch()
    bad = {
        (masks, tmp_path / "v.nii.gz"): "v.nii.gz: several masks' volumes are no single file; give --out a folder",
        (masks, tmp_path / "file"): "file: several masks' volumes are no single file; give --out a folder",
        (masks, masks / ".." / "masks"): "it is the masks' own folder, where volumes would be taken for masks",
        (empty, tmp_path / "out"): "empty: holds no volumes; give the folder that holds the masks themselves",
        (data, tmp_path / "out"): f"data: holds no volumes; give {data / 'mask'}",
        (tmp_path / "no.csv", tmp_path / "out"): "no.csv: no such file",
        (masks / "a.nii.gz", tmp_path / "out"): "out: not a NIfTI name; end it in .nii or .nii.gz",
    }
    for (mask, out), problem in bad.items():
        with pytest.raises(BadInput) as refused:
            find_requests(mask, out)
        assert problem in str(refused.value)
    with pytest.raises(BadInput, match="--image: it would be every mask's; give a CSV with the columns mask and image"):
        find_requests(masks, tmp_path / "out", [Path("i.nii")])
