"""A file is whole or not there."""

from __future__ import annotations

import errno
import gzip
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz.attack import limited

from medddpm.errors import BadInput
from medddpm.runtime.files import (
    LARGEST_JSON,
    check_hollow,
    check_output,
    check_writable,
    named_failures,
    opened,
    read_json,
    read_whole,
    replacing,
    replacing_together,
    write_gzipped,
)


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
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "full"), "no room left"),
        (OSError(errno.EROFS, "read-only"), "may not be written"),
        (OSError(errno.ENOENT, "no such file"), "there is no such folder; make it"),
        (ValueError("a bug"), None),
        (OSError(errno.EIO, "a broken disk"), "a: a broken disk"),
    ],
)
def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path, error: Exception, line: str | None) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(BadInput if line else type(error), match=line):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "a")
    assert os.listdir(tmp_path / "new") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="a file stands where its folder should be"):
        check_writable(tmp_path / "file" / "a")


@pytest.mark.parametrize("there", [False, True])
def test_where_nothing_may_be_written_the_folder_is_named_or_the_file_that_is_there(
    tmp_path: Path, there: bool
) -> None:
    folder = tmp_path / "run"
    if there:
        folder.mkdir()
        (folder / "a").write_text("")
    with pytest.raises(BadInput, match="may not be written") as refused, named_failures(folder / "a"):
        raise OSError(errno.EROFS, "read-only")
    assert refused.value.path == os.fspath(folder / "a" if there else tmp_path)


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


KILLED = """
import os, signal, sys, time
from pathlib import Path
from medddpm.runtime import files
how, *paths = sys.argv[1:]
def end(*_):
    if how == "lives":
        print("writing", flush=True)
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGKILL)
replaced = os.replace
def replace(source, place):  # the second file is moved aside, and the process killed before the new one takes its place
    if Path(place).name == "b":
        end()
    replaced(source, place)
if how == "moves":
    files.os.replace = replace
with files.replacing_together(paths) as made:
    for path in made:
        path.write_text("half")
    if how != "moves":
        end()
"""


def killed(how: str, *paths: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, how, *map(str, paths)])
    assert done.returncode == -signal.SIGKILL


def there(folder: Path) -> list[str]:
    """The names of the files, those left by a process cut to their beginnings and ends."""
    return sorted(re.sub(r"^(\.[a-z]+-).*-", r"\1", path.name) for path in folder.iterdir())


def write(*paths: Path) -> None:
    with replacing_together(paths) as made:
        for path in made:
            path.write_text("new")


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_the_same(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in ("a", "b", "c"))
    killed("writes", a, b)
    killed("writes", a)
    assert there(tmp_path) == [".writing-a", ".writing-b"], "one was removed as the other was begun"
    write(a)
    assert there(tmp_path) == [".writing-b", "a"], "b is another's to write"
    check_writable(b)
    assert there(tmp_path) == ["a"]
    killed("writes", c)
    write(c)
    assert there(tmp_path) == [".writing-c", "a", "c"], "the folder is looked through once a process"


def test_what_a_killed_process_moved_aside_stays_until_it_has_been_replaced(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in ("a", "b", "c"))
    for path in (a, b, c):
        path.write_text("old")
    killed("moves", a, b, c)
    assert there(tmp_path) == [".former-a", ".former-b", ".writing-b", ".writing-c", "a", "c"]
    with pytest.raises(ZeroDivisionError), replacing_together([a, b, c]):
        raise ZeroDivisionError
    assert there(tmp_path) == [".former-a", ".former-b", "a", "c"]
    assert {path.read_text() for path in tmp_path.glob(".former-*")} == {"old"}
    write(a, b, c)
    assert there(tmp_path) == ["a", "b", "c"]


def test_what_a_living_process_or_another_machine_writes_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    command = [sys.executable, "-c", KILLED, "lives", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        (living,) = tmp_path.iterdir()
        elsewhere = living.with_name(re.sub(r"-[0-9a-f]{8}-\d+-", "-01234567-999999999-", living.name))
        of_no_process = living.with_name(".writing-abcdefgh-a")  # as a system without /proc leaves it
        for name in (elsewhere, of_no_process):
            name.touch()
        write(path)
        assert set(tmp_path.iterdir()) == {path, living, elsewhere, of_no_process}
        other.kill()


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


@pytest.fixture(params=["a FIFO", "a device", "a socket"])
def special(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> tuple[Path, str]:
    """Files that never answer, never end, or are opened by nobody."""
    path = tmp_path / "special"
    if request.param == "a FIFO":
        os.mkfifo(path)
    elif request.param == "a device":
        path.symlink_to("/dev/zero")
    else:
        monkeypatch.chdir(tmp_path)  # the name of a socket may have a hundred characters
        socket.socket(socket.AF_UNIX).bind("special")
    return path, request.param


@pytest.mark.parametrize(
    "use",
    [
        lambda path: opened(path),
        lambda path: read_whole(path, 100, "give another"),
        lambda path: read_json(path, "mend it"),
        lambda path: check_output(path, ours=lambda p: bool(opened(p)), force=True),
        lambda path: check_writable(path),
        lambda path: write_gzipped(b"text", path),
    ],
    ids=["opened", "read_whole", "read_json", "check_output", "check_writable", "replacing"],
)
def test_what_may_never_answer_is_neither_read_nor_replaced(special: tuple[Path, str], use: Callable) -> None:
    path, kind = special
    before = path.stat().st_mode
    # A link is resolved for writing, so that the file itself is named.
    with limited(), pytest.raises(BadInput, match=rf"(special|/dev/zero): {kind} stands there; give a file's name"):
        use(path)
    assert path.stat().st_mode == before


def test_a_fifo_that_takes_a_file_s_place_as_it_is_opened_is_refused(tmp_path: Path, monkeypatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")
    looked = os.stat
    monkeypatch.setattr(os, "stat", lambda path: looked(tmp_path / "file" if isinstance(path, Path) else path))
    with limited(), pytest.raises(BadInput, match="a FIFO stands there"):
        opened(tmp_path / "fifo")


def test_a_file_is_read_whole_or_named_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert read_whole(path, 100, "mend it") == b"x" * 100
    with pytest.raises(BadInput, match="a: it has 100 bytes, and a file of this kind at most 99; mend it"):
        read_whole(path, 99, "mend it")
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "b", 99, "mend it")
    os.truncate(path, 2**40)
    with limited(), pytest.raises(BadInput, match=f"at most {LARGEST_JSON}; mend it"):
        read_json(path, "mend it")


def test_a_hole_is_told_from_zeros(tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(2**20))
    (tmp_path / "partly").write_bytes(bytes(2**18))
    os.truncate(tmp_path / "partly", 2**20)
    for name in ("zeros", "partly"):
        with opened(tmp_path / name) as stream:
            check_hollow(tmp_path / name, stream)
            assert stream.read(1) == b"\0"
    os.truncate(tmp_path / "zeros", 2**30)
    with opened(tmp_path / "zeros") as stream, pytest.raises(BadInput, match=r"zeros: only .* bytes are on the disk"):
        check_hollow(tmp_path / "zeros", stream)
