"""Prepared volumes on disk are those of the source, to the last bit, whatever has happened to their files."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import shutil
import signal
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.attack import limited
from safetensors.torch import load_file, save_file

from medddpm.data import disk_cache
from medddpm.data.disk_cache import DiskCache, default_folder
from medddpm.data.phantom import Phantom, write_phantom
from medddpm.data.volumes import VolumeFolder
from medddpm.errors import BadInput

SIZE = (8, 8, 8)


@pytest.fixture
def source(head_folder: Path) -> VolumeFolder:
    return VolumeFolder(head_folder, SIZE, cache_gib=0)


def counted(source: VolumeFolder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cases that the source prepares in this process from now on."""
    prepared: list[str] = []
    prepare = source._prepare
    monkeypatch.setattr(source, "_prepare", lambda case: prepared.append(case.name) or prepare(case))
    return prepared


def same(cache: DiskCache, source: Any) -> bool:
    return all(torch.equal(a, b) for i in range(len(source)) for a, b in zip(cache[i], source[i], strict=True))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


@pytest.mark.parametrize("processes", [1, 2])
def test_each_item_is_prepared_once_and_is_the_sources(source, tmp_path: Path, monkeypatch, processes: int) -> None:
    cache = DiskCache(source, tmp_path)
    assert len(cache.missing()) == 3
    assert cache.prepare(processes=processes) == 3
    prepared = counted(source, monkeypatch)
    again = DiskCache(source, tmp_path)
    assert again.prepare() == 0
    assert [tensor.dtype for tensor in again[0]] == [torch.float32, torch.float32]
    items = [again[index] for index in range(-3, 3)]
    assert prepared == []
    assert same(again, source)
    assert torch.equal(items[0][0], items[3][0])
    with pytest.raises(IndexError):
        again[3]


def test_an_item_is_the_callers_own(source, tmp_path: Path) -> None:
    cache = DiskCache(source, tmp_path)
    cache[0][0].zero_()
    assert same(DiskCache(source, tmp_path), source)
    assert same(cache, source)


def test_the_phantom_and_a_folder_share_a_cache_and_a_larger_set_prepares_only_what_is_new(tmp_path: Path) -> None:
    assert DiskCache(Phantom(2, SIZE, cache_gib=0), tmp_path).prepare(processes=1) == 2
    assert DiskCache(Phantom(3, SIZE, cache_gib=0), tmp_path).prepare(processes=1) == 1
    assert len(DiskCache(Phantom(3, (8, 8, 16), cache_gib=0), tmp_path).missing()) == 3
    assert len(DiskCache(Phantom(3, SIZE, "t2", cache_gib=0), tmp_path).missing()) == 3


def test_another_source_or_preparation_is_prepared_anew(head_folder: Path, tmp_path: Path, monkeypatch) -> None:
    data, folder = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(head_folder, data)
    DiskCache(VolumeFolder(data, SIZE, cache_gib=0), folder).prepare(processes=1)
    assert len(DiskCache(VolumeFolder(data, SIZE, "slice"), folder).missing()) == 3
    assert len(DiskCache(VolumeFolder(data, (8, 8, 16)), folder).missing()) == 3
    write_phantom(tmp_path / "other", 1, (16, 16, 16), seed=9)
    shutil.copy(tmp_path / "other" / "image" / "phantom_0000.nii.gz", data / "image" / "phantom_0000.nii.gz")
    os.utime(data / "image" / "phantom_0001.nii.gz")  # its content is the same
    changed = VolumeFolder(data, SIZE, cache_gib=0)
    assert DiskCache(changed, folder).missing() == [0]
    assert same(DiskCache(changed, folder), changed)
    monkeypatch.setattr(disk_cache, "VERSION", disk_cache.VERSION + 1)
    assert len(DiskCache(changed, folder).missing()) == 3


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def foreign(path: Path) -> None:
    """Another item's file, whole."""
    other = next(file for file in files(path.parents[1]) if file != path)
    shutil.copy(other, path)


def other_tensors(path: Path) -> None:
    save_file({"weights": torch.ones(2)}, path)


@pytest.mark.parametrize("spoil", [torn, flipped, foreign, other_tensors, lambda path: path.write_bytes(b"")])
def test_a_file_that_is_not_what_it_should_be_is_found_and_remade(source, tmp_path: Path, spoil, caplog) -> None:
    DiskCache(source, tmp_path).prepare(processes=1)
    whole = {path: {n: t.clone() for n, t in load_file(path).items()} for path in files(tmp_path)}
    spoil(files(tmp_path)[1])
    assert same(DiskCache(source, tmp_path), source)
    assert "it is damaged or another item's; prepared anew" in caplog.text
    for path, tensors in whole.items():
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in load_file(path).items())


def test_a_full_disk_is_said_before_the_work(source, tmp_path: Path, monkeypatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 10, 2 * (512 * 4 + 1024) - 1))
    with pytest.raises(
        BadInput, match=r"no room for 2 prepared volumes: .* MiB, and .* are free; free some space, or give --c"
    ):
        DiskCache(source, tmp_path).prepare(processes=1)
    assert len(files(tmp_path)) == 1


def test_a_disk_that_fills_up_is_a_line_and_leaves_no_torn_file(source, tmp_path: Path) -> None:
    """A limit on a file's size stands for the disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(BadInput) as caught:
            DiskCache(source, tmp_path).prepare(processes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert str(caught.value) == (
        f"{tmp_path}: no room left to write it; free some space, or give --cache a folder with more room"
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_a_read_only_data_folder_serves_and_a_read_only_cache_is_a_line(head_folder: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    data, folder = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(head_folder, data)
    folder.mkdir()
    for path in (data, *data.iterdir(), folder):
        path.chmod(0o555)
    source = VolumeFolder(data, SIZE, cache_gib=0)
    with pytest.raises(BadInput, match="permission denied; give --cache a folder that can be written"):
        DiskCache(source, folder).prepare(processes=1)
    folder.chmod(0o755)
    assert DiskCache(source, folder).prepare(processes=1) == 3


def test_a_cache_where_a_file_stands_is_a_line(source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="give --cache a folder that can be written"):
        DiskCache(source, tmp_path / "file").prepare()


def test_a_fifo_in_a_cache_is_a_line(source, tmp_path: Path) -> None:
    cache = DiskCache(source, tmp_path)
    (path := cache._path(cache._keys[0])).parent.mkdir(parents=True)
    os.mkfifo(path)
    with limited(), pytest.raises(BadInput, match="a FIFO stands there"):
        cache[0]
    path.unlink()
    os.mkfifo(tmp_path / ".lock")
    with limited(), pytest.raises(BadInput, match=r"\.lock: a FIFO stands there"):
        cache.prepare(processes=1)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_bad_volume_is_named(head_folder: Path, tmp_path: Path, processes: int) -> None:
    data = tmp_path / "data"
    shutil.copytree(head_folder, data)
    bad = data / "image" / "phantom_0002.nii.gz"
    cache = DiskCache(VolumeFolder(data, SIZE, cache_gib=0), tmp_path / "cache")
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(BadInput, match=r"phantom_0002\.nii\.gz") as caught:
        cache.prepare(processes=processes)
    with open(tmp_path / "cache" / ".lock", "a") as lock:  # while the error keeps its traceback's loading processes
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert caught.value.__traceback__ is not None


def test_told_to_stop_it_leaves_the_rest_for_later(source, tmp_path: Path) -> None:
    cache = DiskCache(source, tmp_path)
    assert cache.prepare(processes=1, stopped=lambda: True) == 2
    assert len(cache.missing()) == 1
    assert same(cache, source)


def _prepare(root: Path, folder: Path, counts: Any) -> None:
    counts.put(DiskCache(VolumeFolder(root, SIZE, cache_gib=0), folder).prepare(processes=1))


def test_of_two_processes_one_prepares_and_the_other_waits(head_folder: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    both = [context.Process(target=_prepare, args=(head_folder, tmp_path, counts)) for _ in range(2)]
    for process in both:
        process.start()
    assert sorted(counts.get(timeout=120) for _ in both) == [0, 3]
    for process in both:
        process.join()


def test_what_a_killed_process_left_is_removed(source, tmp_path: Path) -> None:
    for name, age in (("old", 2 * disk_cache.ABANDONED), ("new", 0)):
        half = tmp_path / "ab" / f".writing-{name}"
        half.parent.mkdir(exist_ok=True)
        half.write_bytes(b"half")
        os.utime(half, (half.stat().st_mtime - age,) * 2)
    DiskCache(source, tmp_path).prepare(processes=1)
    assert [path.name for path in (tmp_path / "ab").glob(".writing-*")] == [".writing-new"]


def test_the_folder_is_the_users_unless_told(monkeypatch) -> None:
    monkeypatch.delenv("MEDDDPM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/medddpm/volumes")
    monkeypatch.setenv("MEDDDPM_CACHE", "/elsewhere")
    assert default_folder() == Path("/elsewhere")
