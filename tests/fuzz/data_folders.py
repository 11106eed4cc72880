"""Broken data folders: what describes their files (dataset.json, a CSV of pairs, BIDS's table), and their trees."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from helpers.data_folders import DECATHLON, NNUNET, bids, case_folder, decathlon, head_labels, image, nnunet, save
from hypothesis import strategies as st

from fuzz import mutants
from medddpm.data.checking import check_folder
from medddpm.data.readers import read_folder

Parts = tuple[str, str, st.SearchStrategy[bytes], Callable[[Path], object]]
"""As `fuzz.families.Family` takes them."""

NAMES = ("data-nnunet", "data-decathlon", "data-csv", "data-csv-bytes", "data-bids-labels", "data-tree")
TREES = (
    "mask/m_1.nii.gz mask/m_2.nii image/i_1.nii.gz image/i_2.nii.gz image/sub/i_3.nii.gz image/i_4.mha",
    "Seg/a_1_seg.nii.gz T1/a_1_t1.nii.gz t1ce/a_1_t1ce.nii.gz t2/a_1_t2.nii.gz FLAIR/a_1_flair.nii.gz",
    "HGG/B_1/B_1_t1.nii B_1/B_1_t1.nii B_1/B_1_t1ce.nii B_1/B_1_t2.nii B_1/B_1_flair.nii B_1/B_1_seg.nii",
    "sub-01/anat/sub-01_T1w.nii.gz derivatives/x/sub-01/anat/sub-01_dseg.nii.gz sub-01/anat/sub-01_run-2_T1w.nii.gz",
    "imagesTr/c_0000.nii.gz labelsTr/c.nii.gz imagesTr/d_0000.nii.gz labelsTr/d.nii.gz dataset.json",
)
HEAD_JSON = {"channel_names": {"0": "MRI"}, "labels": {"background": 0, "brain": 1, "tumor": 2}}
KINDS = ("file", "folder", "fifo", "dangling", "circle")
WORDS = ("", "_", "a" * 300, "\x1b[2J", "\n", "\u202e", "é", "..", "sub-", "sub-01", "mask", "t1", "T1", "seg",
         "0000", "99999999999999999999", ".nii", ".nii.gz", ".hdr", ".mha", ".bz2", "._", "derivatives",
         "dataset.json")  # fmt: skip


def data_folders(folder: Path) -> list[Parts]:
    """All of them; `folder` is for the good volumes that they tell of."""
    raw = nnunet(folder / "nnunet")
    ten = decathlon(folder / "decathlon")
    table = bids(folder / "bids")
    for name in ("one", "two"):
        save(folder / "csv" / f"{name}.nii.gz", image())
        save(folder / "csv" / f"{name}_mask.nii.gz", head_labels())
    case_folder(folder / "csv" / "c")
    names = "c/c_t1.nii.gz,c/c_seg.nii.gz,c/c_t1ce.nii.gz,c/c_t2.nii.gz,c/c_flair.nii.gz"
    note = " ".join("abcdefghijklmnopqrstuvwxyz")  # of a column that is not read: not every mutant is refused
    pairs = [
        f"mask,image,note\none_mask.nii.gz,one.nii.gz,{note}\ntwo_mask.nii.gz,two.nii.gz,{note}\n",
        f"t1,mask,t1ce,t2,flair,note\n{names},{note}\n",
    ]
    labels = ["index\tname\n0\tbackground\n1\tbrain\n2\ttumor\n"]
    read: list[tuple[st.SearchStrategy[bytes], Path]] = [
        (_json(NNUNET), raw / "dataset.json"),
        (_json({**DECATHLON, "dataset": {"a": {"images": ["imagesTr/BRATS_001.nii.gz"],
                                               "label": "labelsTr/BRATS_001.nii.gz"}}}), ten / "dataset.json"),
        (mutants.broken_text(pairs), folder / "csv" / "pairs.csv"),
        (mutants.broken_bytes([text.encode() for text in pairs]), folder / "csv" / "pairs.csv"),
        (mutants.broken_text(labels), table / "derivatives" / "seg" / "dseg.tsv"),
    ]  # fmt: skip
    told = [(name, place.name, broken, _told(place)) for name, (broken, place) in zip(NAMES, read, strict=False)]
    return [*told, (NAMES[-1], "tree.json", broken_tree().map(_text), _tree)]


def _json(content: dict[str, object]) -> st.SearchStrategy[bytes]:
    return st.one_of(mutants.broken_value(content).map(_text), mutants.broken_text([json.dumps(content, indent=1)]))


def _text(value: object) -> bytes:
    return json.dumps(value, default=repr).encode()


def _told(place: Path) -> Callable[[Path], object]:
    """Puts a broken file in its place among good volumes, and checks that folder."""
    root = place if place.suffix == ".csv" else place.parents[2] if place.suffix == ".tsv" else place.parent

    def read(path: Path) -> object:
        shutil.copyfile(path, place)
        return _checked(root)

    return read


def _checked(root: Path) -> object:
    """Checks a data folder, and raises its first problem."""
    report = check_folder(root)
    for problem in report.problems:
        raise problem
    return report


@st.composite
def broken_tree(draw: st.DrawFn) -> list[list[str]]:
    """One of `TREES`, or a mixture of two, with some entries renamed, left out, or of another kind."""
    entries = [["file", path] for path in draw(st.sampled_from(TREES)).split()]
    if draw(st.booleans()):
        entries += [["file", path] for path in draw(st.sampled_from(TREES)).split()]
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(entries) - 1))
        kind, path = entries[at]
        match draw(st.sampled_from(("rename", "word", "kind", "remove", "repeat"))):
            case "rename":
                parts = path.split("/")
                parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(WORDS))
                entries[at] = [kind, "/".join(parts)]
            case "word":
                place = draw(st.integers(0, len(path)))
                entries[at] = [kind, path[:place] + draw(st.sampled_from(WORDS)) + path[place:]]
            case "kind":
                entries[at] = [draw(st.sampled_from(KINDS)), path]
            case "remove" if len(entries) > 1:
                del entries[at]
            case "repeat":
                entries.append([kind, path.replace("1", draw(st.sampled_from(("01", "2", "A1"))))])
    return entries


def _tree(path: Path) -> object:
    root = path.with_name("tree")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for kind, name in json.loads(path.read_text()):
        with contextlib.suppress(OSError, ValueError):  # what no file system takes
            place = root / name
            if root not in Path(os.path.abspath(place)).parents or os.path.lexists(place):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            _make(kind, place, root)
    return _read(root)


def _read(root: Path) -> object:
    """Finds a folder's cases: a file belongs to one at most, lies in the folder, and each line is one."""
    found = read_folder(root)
    files = [path for case in found.cases for path in (case.mask, *case.files())]
    assert len(set(files)) == len(files), "a file in two cases"
    assert all(root in path.parents and ".." not in path.parts for path in files)
    lines = [str(line) for line in (*found.notes, *found.problems)]
    assert all(line.isprintable() and len(line) < 2000 for line in lines), lines
    assert found.problems or found.cases, "neither cases nor a problem"
    return found.complete()


def _make(kind: str, place: Path, root: Path) -> None:
    match kind:
        case "folder":
            place.mkdir()
        case "fifo":
            os.mkfifo(place)
        case "dangling":
            place.symlink_to(root / "nowhere")
        case "circle":
            place.symlink_to(root)
        case _ if place.name == "dataset.json":
            place.write_text(json.dumps(HEAD_JSON))
        case _:
            place.touch()
