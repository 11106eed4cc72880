"""Every arrangement of files becomes the right cases, and what does not is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.data_folders import (
    ANNOTATED_2023,
    COUNTS,
    DECATHLON,
    MODALITIES,
    NNUNET,
    SIZE,
    bids,
    case_folder,
    decathlon,
    head_labels,
    image,
    level,
    nnunet,
    save,
    tumour,
)  # fmt: skip
from helpers.repository import SHARED

from medddpm.cli.main import main
from medddpm.data.checking import check_folder
from medddpm.data.layouts import BRATS, HEAD, Layout
from medddpm.data.readers import case_of, find_layout, folders, listing, pairing, read_folder
from medddpm.data.readers.words import identity, labels_by_name, role
from medddpm.data.volumes import VolumeFolder, condition
from medddpm.errors import BadInput


def counts(mask: Any) -> dict[int, int]:
    """The voxels of each label of a condition, (M, D, W, H), but the brain's."""
    return {label: int((mask[place] == 1).sum()) for place, label in enumerate((1, 2, 3))}


def names(root: Path) -> list[tuple[str, ...]]:
    """The files of each case, relative to the folder, the mask first."""
    return [
        tuple(os.path.relpath(path, root) for path in (case.mask, *case.images)) for case in read_folder(root).cases
    ]


def refused(root: Path) -> str:
    with pytest.raises(BadInput) as caught:
        read_folder(root).complete()
    return str(caught.value)


# A folder a channel


@pytest.mark.parametrize("layout", [HEAD, BRATS], ids=lambda layout: layout.name)
@pytest.mark.parametrize("write", [str.lower, str.upper, str.title])
def test_layout_is_found_by_its_folders_in_any_case(tmp_path: Path, layout: Layout, write: Any) -> None:
    for folder in layout.folders:
        save(tmp_path / write(folder) / "a_1.nii.gz", head_labels())
    contents = read_folder(tmp_path)
    assert contents.layout is find_layout(tmp_path) is layout
    assert [case.name for case in contents.complete()] == ["a_1"]
    assert (HEAD.image_channels, HEAD.mask_channels) == (1, 2)
    assert (BRATS.image_channels, BRATS.mask_channels) == (4, 4)


@pytest.mark.parametrize(
    ("folders", "problem"),
    [
        ([], "an empty folder"),
        (["pictures"], "follows no known layout; lay it out as mask/ image/, or seg/ t1/ t1ce/ t2/ flair/"),
        (["seg", "t1", "t2"], "lacks t1ce/ flair/ of the BraTS layout"),
        (["image"], "lacks mask/ of the whole head layout"),
        (["mask", "image", "seg", "t1", "t1ce", "t2", "flair"], "holds both published layouts"),
        (["mask", "image"], "holds no .nii or .nii.gz in mask/ image/"),
        (["mask", "image", "Image"], "holds both Image/ and image/"),
        (["imagesTr", "labelsTr"], "lacks dataset.json"),
        (["sub-01/anat"], "follows no known layout"),
    ],
    ids=["empty", "other", "incomplete", "no mask", "both", "no volumes", "twice", "nnU-Net", "BIDS"],
)
def test_folder_that_is_no_data_set(tmp_path: Path, folders: list[str], problem: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(BadInput) as caught:
        VolumeFolder(tmp_path)
    assert f"{tmp_path}: {problem}" in str(caught.value)


def test_missing_folder_and_file_as_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        read_folder(tmp_path / "none")
    with pytest.raises(BadInput, match="not a folder"):
        read_folder(save(tmp_path / "a.nii.gz", image()))
    with pytest.raises(BadInput, match="not a folder"):
        read_folder(Path("/dev/zero"))


# Pairs by name


@pytest.mark.parametrize(
    ("name", "left", "meant"),
    [
        ("BraTS2021_01306_t1ce.nii.gz", ("brats2021", "01306"), "t1ce"),
        ("BraTS-GLI-00001-100-t2f.nii", ("brats", "gli", "00001", "100"), "flair"),
        ("Brats18_CBICA_AAB_1_seg.nii.gz", ("brats18", "cbica", "aab", "1"), "mask"),
        ("t1_mask_12.nii.gz", ("12",), "mask"),
        ("image12_t1.nii.gz", ("12",), "t1"),
        ("mask12.nii.gz", ("12",), "mask"),
        ("sub-07_T1w.nii.gz", ("sub", "07"), "t1"),
        ("sub-07_ce-gadolinium_T1w.nii.gz", ("sub", "07"), "t1ce"),
        ("patient1.nii.gz", ("patient1",), None),
        ("colin_t1.nii.gz", ("colin",), "t1"),
    ],
)
def test_a_name_is_a_case_and_a_role(name: str, left: tuple[str, ...], meant: str | None) -> None:
    assert (identity(Path(name)), role(name)) == (left, meant)


def test_whole_names_come_first(tmp_path: Path) -> None:
    """Cases of BraTS 2018 and 2019 share their digits: letters tell them apart."""
    cases = ["Brats18_CBICA_AAB_1", "Brats18_CBICA_AAG_1", "Brats18_TCIA01_131_1", "Brats18_2013_2_1"]
    for case in cases:
        for name in ("seg", *MODALITIES):
            save(tmp_path / name / f"{case}_{name}.nii.gz", tumour() if name == "seg" else image())
    contents = read_folder(tmp_path)
    assert sorted(case.name for case in contents.complete()) == sorted(f"{case}_seg" for case in cases)
    for case in contents.cases:
        assert {path.name.rpartition("_")[0] for path in case.images} == {case.mask.name.rpartition("_")[0]}
    assert contents.notes == []


@pytest.mark.parametrize(
    ("mask", "other"),
    [
        ("sub-B01_mask", "sub-A01_T1w"),
        ("Brats18_CBICA_AAG_1_seg", "Brats18_CBICA_AAB_1_t1"),
        ("patient_B_7", "patient_A_7"),
        ("sub-01_run-1_mask", "sub-01_run-2_T1w"),
    ],
)
def test_digits_do_not_pair_what_letters_or_other_digits_tell_apart(tmp_path: Path, mask: str, other: str) -> None:
    save(tmp_path / "mask" / f"{mask}.nii.gz", head_labels())
    save(tmp_path / "image" / f"{other}.nii.gz", image())
    contents = read_folder(tmp_path)
    assert contents.cases == []
    assert sorted(problem.problem for problem in contents.problems) == [
        "has no partner in image/", "has no partner in mask/",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("masks", "images"),
    [
        (["m_1", "m_2"], ["i_1", "i_2"]),
        (["seg_001", "seg_002"], ["volume1", "volume2"]),
        (["anna_lesion", "bob_lesion"], ["anna_brain", "bob_brain"]),
        (["sub-01_desc-x2_mask", "sub-02_desc-x2_mask"], ["sub-001_space-MNI152_T1w", "sub-002_space-MNI152_T1w"]),
        (["a2021_2021", "a2021_7"], ["b2021", "b7"]),
    ],
    ids=["digits", "leading zeros", "shared words", "shared entities", "a shared number that is also a case's"],
)
def test_what_is_left_is_paired_by_a_part_of_the_name_and_said(
    tmp_path: Path, masks: list[str], images: list[str]
) -> None:
    for one, other in zip(masks, images, strict=True):
        save(tmp_path / "mask" / f"{one}.nii.gz", head_labels())
        save(tmp_path / "image" / f"{other}.nii.gz", image())
    assert sorted(names(tmp_path)) == sorted(
        (f"mask/{one}.nii.gz", f"image/{other}.nii.gz") for one, other in zip(masks, images, strict=True)
    )
    (note,) = read_folder(tmp_path).notes
    assert note.problem.startswith("cases paired by a part of their names alone, or by their folder: 2 of 2")
    assert all(case.by_part for case in read_folder(tmp_path).cases)
    assert VolumeFolder(tmp_path, SIZE).notes is not None


def test_cases_are_paired_across_names_and_endings(tmp_path: Path) -> None:
    save(tmp_path / "mask" / "mask_2.nii", head_labels())
    save(tmp_path / "mask" / "mask_1.nii.gz", head_labels())
    one, two = (save(tmp_path / "image" / f"image{n}_t1.nii.gz", image()) for n in (1, 2))
    (tmp_path / "image" / "._image1_t1.nii.gz").write_bytes(b"macOS")
    (tmp_path / "image" / "notes3.txt").write_text("not a volume")
    contents = read_folder(tmp_path)
    assert [(case.name, case.images) for case in contents.complete()] == [("mask_1", (one,)), ("mask_2", (two,))]
    assert contents.notes == []


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ("mask/case_7.nii.gz", "has no partner in image/"),
        ("image/case_8.nii.gz", "has no partner in mask/"),
        ("image/other_001.nii.gz", "has no partner in mask/"),
        ("image/case_001_t1.nii.gz", "cannot be told from case_001_t1.nii.gz by its name"),
    ],
    ids=["mask", "image", "other name", "twice"],
)
def test_file_without_its_partner_is_named(tmp_path: Path, extra: str, problem: str) -> None:
    for case in ("case_001", "case_002"):
        save(tmp_path / "mask" / f"{case}_mask.nii.gz", head_labels())
        save(tmp_path / "image" / f"{case}.nii.gz", image())
    save(tmp_path / extra, head_labels())
    line = refused(tmp_path)
    assert problem in line
    assert Path(extra).name in line


def test_many_files_without_partners_are_named_in_one_line(tmp_path: Path) -> None:
    save(tmp_path / "mask" / "x1.nii.gz", head_labels())
    for number in (1, *range(20, 27)):
        save(tmp_path / "image" / f"x{number}.nii.gz", image())
    assert "7 files cannot be paired: image/x20.nii.gz" in refused(tmp_path)
    assert "and 2 more" in refused(tmp_path)


# What is passed over


def test_volumes_that_are_not_read_are_named_with_what_to_do(tmp_path: Path, capsys) -> None:
    save(tmp_path / "image" / "case_1.nii.gz", image())
    save(tmp_path / "mask" / "case_1.nii.gz", head_labels())
    save(tmp_path / "image" / "case_4" / "i.nii.gz", image())
    for name in ("case_2.hdr", "case_2.img", "case_3.mgz", "case_5.nii.bz2", "case_6.MHD", "notes.txt", ".hidden.mha"):
        (tmp_path / "image" / name).write_bytes(b"x")
    report = check_folder(tmp_path)
    notes = {note.problem: note.remedy for note in report.notes}
    assert notes == {
        "4 files are not read: image/case_2.hdr, image/case_2.img, image/case_3.mgz, image/case_6.MHD": (
            "convert them to .nii.gz"
        ),
        "1 file is not read: image/case_5.nii.bz2": "unpack them; of packed files only .nii.gz is read",
        "1 file is not read: image/case_4/i.nii.gz": "lay them directly into the folder of their channel",
    }
    assert report.problems == []
    assert str(report).endswith("1 case (12x10x8), 0 problems, 3 notes")
    assert main(["check", "-q", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("note: ") == 3
    line = str(VolumeFolder(tmp_path, SIZE).notes)
    assert all(name in line for name in ("case_2.hdr", "case_3.mgz", "case_5.nii.bz2", "case_4", "`medddpm check`"))


def test_train_says_in_a_line_what_it_does_not_read(tmp_path: Path, capsys) -> None:
    save(tmp_path / "data" / "image" / "i_1.nii.gz", image())
    save(tmp_path / "data" / "mask" / "m_1.nii.gz", head_labels())
    (tmp_path / "data" / "image" / "i_2.img").write_bytes(b"x")
    command = ["train", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "-q", "--steps", "1"]
    assert main([*command, "--channels", "32", "--size", "8"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "not read" in line]
    assert "i_2.img" in line
    assert "m_1.nii.gz with i_1.nii.gz" in line


# A folder a case


@pytest.mark.parametrize(
    ("folders", "name", "words", "enhancing"),
    [
        (["HGG/Brats18_CBICA_AAB_1", "LGG/Brats18_TCIA_1"], "{case}_{role}.nii.gz", {}, 4),
        (["BraTS20_Training_001", "BraTS20_Training_002"], "{case}_{role}.nii", {}, 4),
        (["BraTS20_Training_355"], "{case}_{role}.nii", {"seg": "W39_1998.09.19_Segm"}, 4),
        (["BraTS2021_00000", "BraTS2021_00002"], "{case}_{role}.nii.gz", {}, 4),
        (["BraTS-GLI-00000-000", "BraTS-GLI-00000-001"], "{case}-{role}.nii.gz", ANNOTATED_2023, 3),
        (["BraTS-GLI-02063-100"], "{case}-{role}.nii.gz", ANNOTATED_2023, 3),
    ],
    ids=["2018", "2020", "2020, 355", "2021", "2023", "2024"],
)
def test_brats_folder_a_case(tmp_path: Path, folders: list[str], name: str, words: Any, enhancing: int) -> None:
    for folder in folders:
        case_folder(tmp_path / folder, name, tumour(enhancing=enhancing), **words)
    contents = read_folder(tmp_path)
    assert (contents.layout, contents.reader, contents.problems, contents.notes) == (BRATS, "a folder a case", [], [])
    assert len(contents.cases) == len(folders)
    for case, folder in zip(contents.cases, folders, strict=True):
        assert case.mask.parent == tmp_path / folder
        assert [level(path) for path in case.images] == [0, 1, 2, 3]
        assert case_of(case.mask, BRATS) == case
    assert check_folder(tmp_path).problems == []
    assert counts(VolumeFolder(tmp_path, SIZE)[0][1]) == COUNTS


def test_since_2023_label_4_is_no_enhancing_tumour(tmp_path: Path) -> None:
    """2024's resection cavity, in a case without enhancing tumour, would else become one."""
    case_folder(tmp_path / "BraTS-GLI-02063-100", "{case}-{role}.nii.gz", tumour(enhancing=4), **ANNOTATED_2023)
    (problem,) = check_folder(tmp_path).problems
    assert problem.path.endswith("-seg.nii.gz")
    assert "label 4 is not the brain" in problem.problem
    with pytest.raises(BadInput, match="label 4 is not the brain"):
        VolumeFolder(tmp_path, SIZE)[0]


def test_a_prepared_mask_of_2023_keeps_its_brain(tmp_path: Path) -> None:
    labels = np.where(image() > 0, np.uint8(4), np.uint8(0))
    labels[3, 3, 3] = 3
    case_folder(tmp_path / "BraTS-GLI-00000-000", "{case}-{role}.nii.gz", labels, **ANNOTATED_2023)
    mask = VolumeFolder(tmp_path, SIZE)[0][1]
    assert int(mask[3].sum()) == int((labels == 4).sum())
    assert int(mask[2].sum()) == 1


def test_a_case_folder_that_lacks_a_file_is_named(tmp_path: Path) -> None:
    case_folder(tmp_path / "BraTS2021_00000")
    lacking = case_folder(tmp_path / "BraTS2021_00002")
    (lacking / "BraTS2021_00002_flair.nii.gz").unlink()
    assert refused(tmp_path).startswith(f"{lacking}: holds no flair; add the missing files")


def test_whole_heads_in_a_folder_a_case_and_all_in_one(tmp_path: Path) -> None:
    for subject in ("anna", "bob"):
        save(tmp_path / "each" / subject / "image.nii.gz", image())
        save(tmp_path / "each" / subject / "mask.nii.gz", head_labels())
        save(tmp_path / "one" / f"{subject}_T1.nii.gz", image())
        save(tmp_path / "one" / f"{subject}_mask.nii.gz", head_labels())
    assert names(tmp_path / "each") == [
        ("anna/mask.nii.gz", "anna/image.nii.gz"), ("bob/mask.nii.gz", "bob/image.nii.gz"),
    ]  # fmt: skip
    assert VolumeFolder(tmp_path / "each", SIZE).names() == ["anna/mask", "bob/mask"]
    assert names(tmp_path / "one") == [("anna_mask.nii.gz", "anna_T1.nii.gz"), ("bob_mask.nii.gz", "bob_T1.nii.gz")]
    assert find_layout(tmp_path / "one") is HEAD


def test_links_that_lead_in_circles_are_followed_once(tmp_path: Path) -> None:
    case = case_folder(tmp_path / "BraTS2021_00000")
    for name in ("again", "more"):
        (tmp_path / name).symlink_to(tmp_path)
        (case / name).symlink_to(tmp_path)
    assert len(read_folder(tmp_path).complete()) == 1


# BIDS


def test_bids_pairs_scans_with_derived_masks(tmp_path: Path) -> None:
    bids(tmp_path)
    assert names(tmp_path) == [
        (f"derivatives/seg/sub-{n}/anat/sub-{n}_dseg.nii.gz", f"sub-{n}/anat/sub-{n}_T1w.nii.gz") for n in ("01", "02")
    ]
    assert read_folder(tmp_path).reader == "BIDS"
    assert check_folder(tmp_path).problems == []
    case = read_folder(tmp_path).cases[1]
    assert case_of(case.mask, HEAD) == case


def test_bids_sessions_runs_and_spaces_are_told_apart(tmp_path: Path) -> None:
    anat, masks = tmp_path / "sub-01" / "{0}" / "anat", tmp_path / "derivatives" / "x" / "sub-01"
    for session in ("ses-1", "ses-02"):
        for run in ("run-1", "run-2"):
            save(Path(str(anat).format(session)) / f"sub-01_{session}_{run}_T1w.nii.gz", image())
    save(masks / "sub-01_ses-01_run-02_desc-tumour_dseg.nii.gz", head_labels())
    save(masks / "sub-01_ses-2_run-1_space-MNI152_dseg.nii.gz", head_labels())
    save(masks / "sub-01_ses-2_run-1_space-MNI152_desc-preproc_T1w.nii.gz", image())
    contents = read_folder(tmp_path)
    assert contents.problems == []
    assert [(case.mask.name, case.images[0].name) for case in contents.cases] == [
        ("sub-01_ses-01_run-02_desc-tumour_dseg.nii.gz", "sub-01_ses-1_run-2_T1w.nii.gz"),
        ("sub-01_ses-2_run-1_space-MNI152_dseg.nii.gz", "sub-01_ses-2_run-1_space-MNI152_desc-preproc_T1w.nii.gz"),
    ]
    (note,) = contents.notes
    assert note.problem.startswith("3 files are not read: sub-01/ses-02/anat/")


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ("derivatives/seg/sub-01/anat/sub-01_desc-brain_mask.nii.gz", "is one of several masks of a scan"),
        ("sub-01/anat/sub-01_run-2_T1w.nii.gz", ""),
        ("sub-01/anat/sub-01_acq-x_desc-y_T1w.nii.gz", ""),
        ("derivatives/seg/sub-03/anat/sub-03_dseg.nii.gz", "no T1w of its subject"),
        ("derivatives/seg/sub-03/anat/sub-03_label-lesion_mask.nii.gz", "marks one structure by its name (lesion)"),
    ],
    ids=["two masks", "another run", "another acquisition", "no image", "lesion alone"],
)
def test_bids_says_what_it_cannot_decide(tmp_path: Path, extra: str, problem: str) -> None:
    bids(tmp_path)
    save(tmp_path / extra, head_labels() if "seg" in extra else image())
    contents = read_folder(tmp_path)
    if problem:
        assert any(problem in str(error) for error in contents.problems)
    else:
        assert contents.problems == []
        assert len(contents.notes) == 1


def test_bids_with_two_scans_that_fit_alike_is_not_guessed(tmp_path: Path) -> None:
    bids(tmp_path, ("01",))
    (tmp_path / "sub-01" / "anat" / "sub-01_T1w.nii.gz").unlink()
    for run in (1, 2):
        save(tmp_path / "sub-01" / "anat" / f"sub-01_run-{run}_T1w.nii.gz", image())
    assert "fits sub-01_run-1_T1w.nii.gz and sub-01_run-2_T1w.nii.gz alike" in refused(tmp_path)


def test_bids_of_four_contrasts_is_brats_with_labels_by_its_table(tmp_path: Path) -> None:
    for number, name in enumerate(("T1w", "ce-gd_T1w", "T2w", "FLAIR")):
        save(tmp_path / "sub-01" / "anat" / f"sub-01_{name}.nii.gz", image(number))
    mask = tmp_path / "derivatives" / "x" / "sub-01" / "anat" / "sub-01_dseg.nii.gz"
    save(mask, tumour(oedema=5, necrosis=6, enhancing=7))
    (tmp_path / "derivatives" / "x" / "dseg.tsv").write_text("index\tname\n5\tedema\n6\tnecrosis\n7\tenhancing tumor\n")
    contents = read_folder(tmp_path)
    assert contents.layout is BRATS
    assert [level(path) for path in contents.complete()[0].images] == [0, 1, 2, 3]
    assert counts(VolumeFolder(tmp_path, SIZE)[0][1]) == COUNTS
    (tmp_path / "derivatives" / "x" / "dseg.tsv").write_text("index\tname\n1\tgrey matter\n")
    assert "no model knows its label 'grey matter'" in refused(tmp_path)


# nnU-Net and the Decathlon


@pytest.mark.parametrize("make", [nnunet, decathlon])
def test_channels_and_labels_go_by_their_names(tmp_path: Path, make: Any) -> None:
    """Both number the labels 1 oedema, 2 necrosis, and begin with FLAIR: read by number, all would be swapped."""
    make(tmp_path)
    folder = VolumeFolder(tmp_path, SIZE)
    item, mask = folder[0]
    assert folder.layout is BRATS
    assert check_folder(tmp_path).problems == []
    assert counts(mask) == COUNTS
    assert mask[3].sum() > 100  # the brain is found, as for every raw mask
    expected = [image(number) / image(number).max() * 2 - 1 for number in range(4)]
    np.testing.assert_allclose(item.numpy(), np.stack(expected).transpose(0, 3, 2, 1), atol=1e-5)
    assert np.array_equal(condition(folder.cases[0].mask, BRATS, SIZE), mask)
    np.testing.assert_array_equal(np.unique(folder.reference(0).dataobj), [0, 1, 2, 3])
    assert "labels 1=2 2=1 3=3" in folder.digests()[0]


def test_a_mask_of_other_data_is_refused_for_sampling(tmp_path: Path) -> None:
    nnunet(tmp_path)
    with pytest.raises(BadInput, match="its labels are those of BraTS data, the model takes whole head data"):
        condition(tmp_path / "labelsTr" / "case_001.nii.gz", HEAD, SIZE)


@pytest.mark.parametrize(
    ("named", "layout", "expected"),
    [
        ({"background": 0, "edema": 1, "necrosis": 2, "enhancing": 3}, BRATS, {1: 2, 2: 1, 3: 3}),
        ({"background": 0, "NCR": 1, "ED": 2, "ET": 4}, BRATS, {1: 1, 2: 2, 4: 3}),
        ({"background": 0, "NETC": 1, "SNFH": 2, "ET": 3}, BRATS, {1: 1, 2: 2, 3: 3}),
        ({"surrounding non-enhancing FLAIR hyperintensity": 1, "Enhancing tumour": 2, "SNFH": 1}, BRATS, {1: 2, 2: 3}),
        ({"background": 0, "whole tumor": [1, 2, 3], "tumor core": [2, 3], "enhancing tumor": [3]}, BRATS,
         {1: 2, 2: 1, 3: 3}),
        ({"background": 0, "brain": 4, "necrotic tumor core": 1, "peritumoral edema": 2, "GD-enhancing tumor": 3},
         BRATS, {1: 1, 2: 2, 3: 3, 4: 4}),
        ({"background": 0, "tumor": 1, "brain": 2}, HEAD, {1: 2, 2: 1}),
        ({"background": 0, "brain": [1, 2], "brain tumour": [2]}, HEAD, {1: 1, 2: 2}),
        ({"background": 0, "healthy brain": 7}, HEAD, {7: 1}),
    ],
)  # fmt: skip
def test_labels_mean_what_they_are_called(named: dict[str, Any], layout: Layout, expected: dict[int, int]) -> None:
    table = {name: value if isinstance(value, list) else [value] for name, value in named.items()}
    assert labels_by_name(table) == (layout, expected)


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ({"background": 0, "edema": 1, "necrosis": 2, "enhancing tumor": 3, "resection cavity": 4}, "resection cavity"),
        ({"background": 0, "label1": 1}, "no model knows its label"),
        ({"background": 0, "tumor": 1}, "name no brain"),
        ({"background": 0, "brain stem": 1, "tumor": 2}, "no model knows its label 'brain stem'"),
        ({"background": 0, "non-brain tissue": 1}, "no model knows its label"),
        ({"background": 0}, "names no labels"),
        ({"background": 1, "brain": 2}, "background is not label 0"),
        ({"brain": 1, "tumor": 1000}, "label 1000"),
        ({"brain": 1, "edema": 1, "enhancing": 1}, "label 1 has two names"),
        ({"edema": 1, "tumor": 2}, "name the tumour beside oedema"),
    ],
)
def test_labels_that_are_not_understood_are_refused_in_a_line(
    tmp_path: Path, named: dict[str, int], problem: str
) -> None:
    line = refused(nnunet(tmp_path, content={**NNUNET, "labels": named}))
    assert problem in line
    assert line.startswith(f"{tmp_path / 'dataset.json'}: ")
    assert "name them background, brain and tumor, or background, necrosis, edema and enhancing tumor" in line


def test_nnunet_names_what_is_missing_and_what_is_alone(tmp_path: Path) -> None:
    nnunet(tmp_path, ("a_1", "a_2"))
    (tmp_path / "imagesTr" / "a_1_0002.nii.gz").unlink()
    (tmp_path / "labelsTr" / "a_2.nii.gz").unlink()
    contents = read_folder(tmp_path)
    problems = sorted((Path(problem.path).name, problem.problem) for problem in contents.problems)
    assert problems[0] == ("a_1_0002.nii.gz", "no such file")
    assert problems[1:] == [(f"a_2_{n:04d}.nii.gz", "has no partner in labelsTr/") for n in range(4)]


def test_nnunet_whole_heads(tmp_path: Path) -> None:
    save(tmp_path / "imagesTr" / "a_0000.nii.gz", image())
    save(tmp_path / "imagesTr" / "a_0001.nii.gz", image())
    save(tmp_path / "labelsTr" / "a.nii.gz", 3 - head_labels() - 3 * (head_labels() == 0).astype(np.uint8))
    content = {"channel_names": {"0": "MRI"}, "labels": {"background": 0, "tumor": 1, "brain": 2}}
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    mask = VolumeFolder(tmp_path, SIZE)[0][1]
    assert int((mask[0] == 1).sum()) == int((head_labels() == 1).sum())
    (note,) = read_folder(tmp_path).notes
    assert "imagesTr/a_0001.nii.gz" in note.problem


def test_decathlon_with_fewer_volumes_than_channels_is_named(tmp_path: Path) -> None:
    decathlon(tmp_path)
    save(tmp_path / "imagesTr" / "BRATS_001.nii.gz", np.stack([image(), image()], axis=-1))
    (problem,) = check_folder(tmp_path).problems
    assert "holds 2 volumes, where at least 4 channels are named" in problem.problem
    save(tmp_path / "imagesTr" / "BRATS_001.nii.gz", image())
    (problem,) = check_folder(tmp_path).problems
    assert "3-D (12x10x8) where a 4-D volume is wanted" in problem.problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not readable as JSON"),
        ('{"labels": {"backgr', "not readable as JSON"),
        ("[" * 100_000, "not readable as JSON"),
        ("[]", "no JSON object"),
        ("{}", 'has no "labels"'),
        ('{"labels": ["brain"]}', 'has no "labels"'),
        ('{"labels": {"brain": NaN}}', "do not give 'brain' a number"),
        ('{"labels": {"brain": true}}', "do not give 'brain' a number"),
        ('{"labels": {"brain": 1}}', 'has no "channel_names"'),
        ('{"labels": {"brain": 1}, "modality": ["T1"]}', 'has no "channel_names"'),
        ('{"labels": {"brain": 1}, "modality": {"1": "T1"}}', 'has no "channel_names"'),
        ('{"labels": {"brain": 1}, "modality": {"0": "A", "1": "B"}}', "no channel for t1 among A, B"),
        ('{"labels": {"brain": 1}, "modality": {"0": "T1"}, "training": {}}', "holds no volumes"),
        ('{"labels": {"brain": 1}, "modality": {"0": "T1"}, "training": 5}', "no list of cases"),
        ('{"labels": {"brain": 1}, "modality": {"0": "T1"}, "training": [[]]}', "case 1 is no object"),
    ],
)
def test_a_broken_dataset_json_is_a_line(tmp_path: Path, content: str, problem: str) -> None:
    nnunet(tmp_path)
    (tmp_path / "dataset.json").write_text(content)
    assert problem in refused(tmp_path)


@pytest.mark.parametrize(
    "path", ["/etc/passwd.nii", "../x.nii.gz", "imagesTr/../../x.nii.gz", "x.txt", "a\0.nii", 5, None, []]
)
def test_dataset_json_names_nothing_outside_of_its_folder(tmp_path: Path, path: object) -> None:
    entry = {"image": path, "label": "./labelsTr/BRATS_001.nii.gz"}
    assert "its case 1" in refused(decathlon(tmp_path, {**DECATHLON, "training": [entry]})) or path == []


def test_dataset_json_lists_a_case_twice_or_one_that_is_not_there(tmp_path: Path) -> None:
    (entry,) = DECATHLON["training"]
    assert "lists BRATS_001.nii.gz twice" in refused(decathlon(tmp_path, {**DECATHLON, "training": [entry, entry]}))
    other = {"image": "imagesTr/b.nii.gz", "label": entry["label"]}
    line = refused(decathlon(tmp_path, {**DECATHLON, "training": [other]}))
    assert line.startswith(f"{tmp_path}/imagesTr/b.nii.gz: no such file; add it")


# A CSV of pairs


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    save(tmp_path / "x" / "scan.nii.gz", image())
    save(tmp_path / "y" / "scan.nii.gz", head_labels())
    save(tmp_path / "z" / "scan.nii.gz", head_labels())
    return tmp_path / "pairs.csv"


def test_csv_pairs_any_files(pairs: Path, capsys) -> None:
    pairs.write_text(f"\ufeffMask, image\ny/scan.nii.gz,x/scan.nii.gz\n\n{pairs.parent}/z/scan.nii.gz,x/scan.nii.gz\n")
    folder = VolumeFolder(pairs, SIZE)
    assert folder.layout is HEAD
    assert folder.names() == ["y/scan", "z/scan"]
    assert main(["check", "-q", "--list", str(pairs)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "y/scan: y/scan.nii.gz with x/scan.nii.gz",
        "z/scan: z/scan.nii.gz with x/scan.nii.gz",
        f"{pairs}: whole head layout (CSV of pairs), 2 cases (12x10x8), 0 problems",
    ]


def test_csv_of_brats_takes_columns_in_any_order(tmp_path: Path) -> None:
    case_folder(tmp_path / "c")
    (tmp_path / "p.CSV").write_text(
        "flair,mask,t2,t1ce,t1,age\nc/c_flair.nii.gz,c/c_seg.nii.gz,c/c_t2.nii.gz,c/c_t1ce.nii.gz,c/c_t1.nii.gz,50\n"
    )
    contents = read_folder(tmp_path / "p.CSV")
    assert contents.layout is BRATS
    assert [level(path) for path in contents.complete()[0].images] == [0, 1, 2, 3]
    assert [note.problem for note in contents.notes] == ["1 column is not read: age"]
    assert counts(VolumeFolder(tmp_path / "p.CSV", SIZE)[0][1]) == COUNTS


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "its first line is nothing"),
        (b"mask|image\n", "its first line is mask|image"),
        (b"mask,image,mask\n", "its first line is"),
        (b"mask,image\n", "lists no pairs"),
        (b"mask,image\ny/scan.nii.gz\n", "line 2: 1 cells for 2 columns"),
        (b"mask,image\ny/scan.nii.gz,\n", "line 2: no image"),
        (b"mask,image\ny/scan.nii.gz,gone.nii.gz\n", "line 2: no such file: gone.nii.gz"),
        (b"mask,image\ny,x/scan.nii.gz\n", "line 2: no such file: y"),
        (b"mask,image\npairs.csv,x/scan.nii.gz\n", "line 2: not a volume by its name"),
        (b"mask,image\n" + 2 * b"y/scan.nii.gz,x/scan.nii.gz\n", "line 3: its mask stands in line 2 too"),
        (b"mask,image\n" + b"a" * 5000 + b".nii,x/scan.nii.gz\n", "line 2: no such file"),
        (b"mask,image\n/dev/zero,x/scan.nii.gz\n", "line 2: no such file: /dev/zero"),
        (b"mask,image\na\0b,x/scan.nii.gz\n", ""),
        (b"\x1f\x8b\xff\xfe", "not UTF-8"),
        (b"mask,image\n" + b"a" * 200_000 + b",b\n", ""),  # csv's limit for a cell is the process's: it may be raised
        (b"\n" * 17_000_000, "and a file of this kind at most 16777216"),
        (b"mask,image\n" + b"\n" * 100_000, "more than 100000 lines"),
    ],
)  # fmt: skip
def test_a_broken_csv_is_a_line(pairs: Path, content: bytes, problem: str) -> None:
    pairs.write_bytes(content)
    line = refused(pairs)
    assert problem in line
    assert line.isprintable()


@pytest.mark.parametrize("name", ["pairs.csv", "dataset.json"])
def test_what_never_answers_is_not_opened(tmp_path: Path, name: str) -> None:
    nnunet(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    assert "not a f" in refused(tmp_path if name == "dataset.json" else tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    if name == "dataset.json":
        assert "dataset.json: not a file" in refused(tmp_path)


# Samples


def test_a_masks_images_are_those_of_its_own_case(tmp_path: Path, caplog) -> None:
    """Of two cases with the same digits the images of the other would give another brain."""
    for case, inside in (("P_AAB_1", 3), ("P_AAG_1", 2)):
        data = np.zeros(SIZE, np.float32)
        data[inside:-inside, 2:-2, 2:-2] = image()[inside:-inside, 2:-2, 2:-2]
        for name in MODALITIES:
            save(tmp_path / name / f"{case}_{name}.nii.gz", data)
        save(tmp_path / "seg" / f"{case}_seg.nii.gz", tumour())
    brains = [condition(tmp_path / "seg" / f"P_{n}_1_seg.nii.gz", BRATS, SIZE)[3].sum() for n in ("AAB", "AAG")]
    assert brains[0] < brains[1]
    for name in MODALITIES:
        (tmp_path / name / f"P_AAB_1_{name}.nii.gz").unlink()
    with pytest.raises(BadInput, match="looks like a raw BraTS mask"):
        condition(tmp_path / "seg" / "P_AAB_1_seg.nii.gz", BRATS, SIZE)
    assert caplog.records == []


def test_images_found_by_a_part_of_the_name_are_said(tmp_path: Path, caplog) -> None:
    for name in MODALITIES[:2]:
        save(tmp_path / name / f"scan7_{name}.nii.gz", image())
    mask = save(tmp_path / "seg" / "tumour_07.nii.gz", tumour())
    assert condition(mask, BRATS, SIZE)[3].sum() > 100
    assert "paired by a part of their names, or by their folder (scan7_t1.nii.gz, scan7_t1ce.nii.gz)" in caplog.text


@pytest.mark.parametrize("lesion", ["brain lesions", "brain metastases", "brain tumors"])
def test_a_lesion_of_the_brain_is_no_brain(lesion: str) -> None:
    """Trained as brain, it vanished without a word."""
    assert labels_by_name({"background": [0], "rest of the brain": [1], lesion: [2]}) == (HEAD, {1: 1, 2: 2})


@pytest.mark.parametrize("name", ["T1 no contrast", "T1w_without_Gd", "t1-non-contrast"])
def test_what_is_without_contrast_is_t1(name: str) -> None:
    assert role(name) == "t1"


@pytest.mark.parametrize(
    "text",
    [
        "mask;image\r\nm.nii;i.nii\r\n",
        "mask\timage\nm.nii\ti.nii\n",
        "mask,image,,\nm.nii,i.nii\n",
        "mask,image\nm.nii,i.nii,,\n",
    ],
    ids=["semicolons", "tabs", "columns without a name", "empty cells"],
)
def test_a_csv_as_a_spreadsheet_writes_it(tmp_path: Path, text: str) -> None:
    save(tmp_path / "m.nii", head_labels())
    save(tmp_path / "i.nii", image())
    (tmp_path / "pairs.csv").write_text(text)
    contents = read_folder(tmp_path / "pairs.csv")
    assert [(case.mask.name, case.images[0].name) for case in contents.complete()] == [("m.nii", "i.nii")]
    assert contents.notes == []


def test_a_csv_in_another_encoding_is_to_be_saved_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_bytes("mask,image\nMüller.nii,i.nii\n".encode("cp1252"))
    assert refused(tmp_path / "pairs.csv").endswith("not UTF-8 text; save it as UTF-8 (in Excel: CSV UTF-8)")


def test_a_row_whose_mask_is_its_image_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "m.nii", head_labels())
    (tmp_path / "pairs.csv").write_text("mask,image\nm.nii,m.nii\n")
    assert "line 2: its mask and its image are one file: m.nii" in refused(tmp_path / "pairs.csv")


@pytest.mark.parametrize(
    ("mask", "image_name"),
    [
        ("sub-B01_seg", "sub-A01_T1w"),
        ("BraTS20_Training_356_seg", "BraTS20_Training_355_t1"),
        ("W39_1998_Segm", "P355_t1"),
    ],
)
def test_one_mask_and_one_image_of_other_names_in_a_folder_are_noted(
    tmp_path: Path, mask: str, image_name: str
) -> None:
    save(tmp_path / "p" / f"{mask}.nii.gz", head_labels())
    save(tmp_path / "p" / f"{image_name}.nii.gz", image())
    (note,) = read_folder(tmp_path).notes
    assert f"{mask}.nii.gz with {image_name}.nii.gz" in note.problem


def test_names_in_a_folder_of_which_one_says_more_need_no_note(tmp_path: Path) -> None:
    save(tmp_path / "p" / "p_lesion_seg.nii.gz", head_labels())
    save(tmp_path / "p" / "p_t1.nii.gz", image())
    assert read_folder(tmp_path).notes == []


@pytest.mark.parametrize(
    ("target", "remedy"), [("../.git/annex/objects/x/y.nii.gz", "datalad get"), ("moved.nii.gz", "mend the link")]
)
def test_a_link_to_nothing_is_called_one(tmp_path: Path, target: str, remedy: str) -> None:
    """As git-annex leaves for a volume that was not fetched yet."""
    save(tmp_path / "mask" / "c_1.nii.gz", head_labels())
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "c_1.nii.gz").symlink_to(target)
    (problem,) = check_folder(tmp_path).problems
    assert f"a link to what is not there ({target})" in str(problem)
    assert remedy in str(problem)


def test_the_folder_of_many_masks_is_read_once(tmp_path: Path, monkeypatch) -> None:
    """Read for each of three thousand masks, it kept `sample` busy for a quarter of an hour."""
    case_folder(tmp_path / "flat", "A_1")
    masks = [save(tmp_path / "flat" / f"A_{number}_seg.nii.gz", tumour()) for number in (2, 3)]
    for subject in ("01", "02"):
        save(tmp_path / "bids" / f"sub-{subject}" / f"sub-{subject}_T1w.nii.gz", image())
        masks.append(save(tmp_path / "bids" / f"sub-{subject}" / f"sub-{subject}_dseg.nii.gz", head_labels()))
    for folder in (tmp_path / "flat", tmp_path / "bids"):
        os.utime(folder, (1e9, 1e9))
    listed = []
    real = listing.entries
    monkeypatch.setattr(listing, "entries", lambda folder: listed.append(folder) or real(folder))
    for mask in masks:
        case_of(mask, HEAD)
    assert [listed.count(tmp_path / name) for name in ("flat", "bids")] == [1, 1]


def test_digits_that_hundreds_of_files_share_tell_no_cases_apart(tmp_path: Path, monkeypatch) -> None:
    """As of two visits: comparing each file with all others took minutes."""
    letters = [chr(97 + number // 26) + chr(97 + number % 26) for number in range(120)]
    for place, letter in enumerate(letters):
        for folder, name in (("mask", f"m{letter}"), ("image", f"i{letter}")):
            path = tmp_path / folder / f"{name}_v{place % 2}.nii.gz"
            path.parent.mkdir(exist_ok=True)
            path.touch()
    compared = []
    real = pairing._apart
    monkeypatch.setattr(pairing, "_apart", lambda one, other: compared.append(one) or real(one, other))
    contents = read_folder(tmp_path)
    assert len(contents.problems) == 240
    assert compared == []


@pytest.mark.parametrize(
    ("case", "cases", "problems", "named"),
    [
        ("brats2018_names", 3, 0, []),
        ("pairing_other_subject", 0, 2, []),
        ("volumes_passed_over", 2, 3, ["i_2.hdr", "i_2.img", "i_4.nii.gz", "i_5.nii.bz2"]),
    ],
)
def test_given_cases(case: str, cases: int, problems: int, named: list[str]) -> None:
    """The last one's .mha files, which now count, are damaged."""
    data = SHARED / "cases" / case / "data"
    if not data.is_dir():
        pytest.skip("the cases are not beside this checkout")
    report = check_folder(data)
    notes = " ".join(map(str, report.notes))
    assert (len(report.cases), len(report.problems)) == (cases, problems)
    assert all(name in notes for name in named)


def test_a_folder_is_read_once_for_all_its_masks_and_anew_once_it_changes(tmp_path: Path, monkeypatch) -> None:
    for case in ("a_1", "a_2"):
        for name in ("seg", *MODALITIES):
            save(tmp_path / name / f"{case}_{name}.nii.gz", tumour() if name == "seg" else image())
    read: list[object] = []
    paired = folders.pair
    monkeypatch.setattr(folders, "pair", lambda *files: read.append(files) or paired(*files))
    masks = sorted((tmp_path / "seg").iterdir())
    cases = [case_of(mask, BRATS) for mask in masks]
    assert [len(case.images) for case in cases if case] == [4, 4]
    assert len(read) == 1
    (tmp_path / "t1" / "a_1_t1.nii.gz").unlink()
    os.utime(tmp_path / "t1", ns=(1, 1))  # a disk's clock may be coarse
    cases = [case_of(mask, BRATS) for mask in masks]
    assert [len(case.images) for case in cases if case] == [3, 4]
    assert len(read) == 2
