"""A file is whole or not there."""

from __future__ import annotations

import errno
import gzip
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from medddpm.errors import BadInput
from medddpm.runtime.files import check_output, check_writable, read_json, replacing, replacing_together, write_gzipped


def test_a_block_that_ends_well_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.nii.gz"
    for content in ("one", "two"):
        with replacing(path) as temporary:
            assert temporary.parent == path.parent
            assert temporary.name.endswith("a.nii.gz")
            temporary.write_text(content)
        assert path.read_text() == content
    assert [p.name for p in path.parent.iterdir()] == ["a.nii.gz"]


def test_the_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("")
    (tmp_path / "b").write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "full"), "no room left"),
        (OSError(errno.EROFS, "read-only"), "may not be written"),
        (ValueError("a bug"), None),
        (OSError(errno.EIO, "a broken disk"), "a: a broken disk"),
    ],
)
def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path, error: Exception, told: str | None) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(BadInput if told else type(error), match=told):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "a")
    assert os.listdir(tmp_path / "new") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="a file stands where its folder should be"):
        check_writable(tmp_path / "file" / "a")


def test_a_replaced_file_keeps_its_permissions_and_a_link_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_files_that_belong_together_are_all_replaced_or_none_is(tmp_path: Path) -> None:
    """Whatever is there before: a file, or nothing; and whatever fails: the block, or the last of the moves."""
    paths = [tmp_path / name for name in ("a", "b", "c")]

    def write(text: str, before_the_moves: Callable[[], object] = lambda: None) -> None:
        with replacing_together(paths) as made:
            for path in made:
                path.write_text(text)
            before_the_moves()

    def folder_instead_of_the_last() -> None:
        paths[2].unlink()
        paths[2].mkdir()

    write("first")
    assert [path.read_text() for path in paths] == ["first"] * 3
    paths[1].unlink()
    with pytest.raises(ZeroDivisionError):
        write("second", lambda: 1 / 0)
    with pytest.raises(BadInput, match="c: a folder stands there"):
        write("third", folder_instead_of_the_last)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
    assert paths[0].read_text() == "first"
    paths[2].rmdir()
    write("fourth")
    assert [path.read_text() for path in paths] == ["fourth"] * 3
    assert len(list(tmp_path.iterdir())) == 3


def test_an_error_of_a_temporary_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused, replacing_together([tmp_path / "a", tmp_path / "b"]) as made:
        raise BadInput(made[1], "no room", "make some")
    assert str(refused.value) == f"{tmp_path / 'b'}: no room; make some"


def test_an_output_never_takes_the_place_of_an_input_or_of_a_strangers_file(tmp_path: Path) -> None:
    there, other = tmp_path / "there", tmp_path / "other"
    there.write_text("x")
    other.symlink_to(there)
    with pytest.raises(BadInput, match="it is also read"):
        check_output(there, [other], force=True)
    with pytest.raises(BadInput, match="this command did not write"):
        check_output(there, ours=lambda _path: False, force=True)
    with pytest.raises(BadInput, match="give --force to replace it"):
        check_output(there)
    with pytest.raises(BadInput, match="a folder stands there"):
        check_output(tmp_path)
    check_output(there, force=True)
    check_output(tmp_path / "new", [there])


@pytest.mark.parametrize("text", ["", "[", "[]", "5", "[" * 100_000, '{"a": 1e400', "\udcff"])
def test_json_that_is_none_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput, match=r"a\.json: it is damaged.*; mend it"):
        read_json(path, "mend it")
    with pytest.raises(BadInput, match="it is missing; mend it"):
        read_json(tmp_path / "b.json", "mend it")


def test_json_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"it cannot be read \(is a directory\); check the file and the disk"):
        read_json(tmp_path, "remove it")


def test_a_text_is_compressed_the_same_way_each_time(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_gzipped("Ä text\n".encode() * 1000, tmp_path / name)
    data = (tmp_path / "a.gz").read_bytes()
    assert data == (tmp_path / "b.gz").read_bytes()
    assert data[4:8] == bytes(4), "the archive holds a time"
    assert b"a.gz" not in data, "the archive holds a name"
    assert gzip.decompress(data).decode() == "Ä text\n" * 1000
