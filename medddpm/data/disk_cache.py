"""A data set that is prepared once and stored on disk, one file an item, mapped into memory when it is read.

MONAI's `PersistentDataset` serves another purpose: by default it keys a file by its source's name and not its content,
it moves what it wrote over from another file system, and a torn file or a full disk ends in a traceback.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from medddpm.data.volumes import Volumes
from medddpm.errors import BadInput
from medddpm.fast.reports import bars, log
from medddpm.runtime.files import check_kind, check_room, replacing
from medddpm.runtime.processes import Handed, iterated

VERSION = 2  # of the files and of how volumes are prepared: another one prepares everything anew
MOST_PROCESSES = 16  # that prepare at once; each takes about a GiB at 128³
ABANDONED = 3600.0  # seconds after which a half-written file is a killed process's
REMEDY = "free some space, or give --cache a folder with more room"


def default_folder() -> Path:
    """Returns $MEDDDPM_CACHE, else ``medddpm/volumes`` in $XDG_CACHE_HOME or ~/.cache."""
    if folder := os.environ.get("MEDDDPM_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "medddpm" / "volumes"


class DiskCache(Dataset[tuple[Tensor, Tensor]]):
    """A data set that returns the items of `volumes`, bit for bit, from files in `folder`.

    An item's file is named by a digest of its source's content and of every setting of its preparation. So data sets
    and runs share a folder, and a changed source is prepared anew. When a file is first read, its checksum is compared;
    a file that is torn, altered or of another item is replaced. The folder may be removed at any time.

    Args:
        volumes: prepares an item when it is not there.
        folder: made where it is missing.

    Raises:
        BadInput: a source cannot be read; the folder cannot be read or written, or is full.
    """

    def __init__(self, volumes: Volumes, folder: str | os.PathLike[str]) -> None:
        self.size, self.layout, self._volumes = volumes.size, volumes.layout, volumes
        self.folder = Path(folder)
        self._digests = volumes.digests()
        self._keys = [self._key(digest) for digest in self._digests]
        self._sound: set[int] = set()  # items whose checksums this process has compared

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index = range(len(self))[index]
        item = self._read(index) or self._remake(index)
        return item[0].clone(), item[1].to(item[0].dtype)

    def missing(self) -> list[int]:
        """Returns the indices of the items without a file."""
        return [index for index, key in enumerate(self._keys) if not self._path(key).is_file()]

    def prepare(
        self, progress: bool = False, processes: int | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> int:
        """Prepares the missing items. Of several processes that call it, one prepares and the others wait.

        Args:
            progress: shows a bar on stderr.
            processes: how many prepare at once; by default one a core, up to 16.
            stopped: called after each volume; True ends the work, and later reads prepare the remaining volumes.

        Returns:
            the number of items that this process prepared.

        Raises:
            BadInput: a volume is bad; or the folder cannot be written, or has too little room, before work begins.
        """
        if not self.missing():
            return 0
        with self._alone():
            missing = self.missing()
            if not missing:
                return 0
            self._forget_abandoned()
            shown = functools.partial(tqdm, total=len(missing), desc="preparing", unit="volume", **bars())
            with shown(disable=not progress, leave=False) as bar:
                # The first one here: it tells the size of all, and what it loads (the template) the others inherit.
                size = sum(tensor.nbytes for tensor in self._remake(missing[0]))
                left = len(missing) - 1
                check_room(self.folder, size * left, f"{left} prepared volumes", REMEDY)
                bar.update()
                done = 1
                count = min(processes or min(MOST_PROCESSES, len(os.sched_getaffinity(0))), len(missing) - 1)
                rest: DataLoader[Any] = DataLoader(
                    Handed(_Remaking(self, missing[1:])), batch_size=None, num_workers=count if count > 1 else 0
                )
                for _ in iterated(rest):
                    bar.update()
                    done += 1
                    if stopped():
                        break
        return done

    def names(self) -> list[str]:
        """Returns the names in the data set."""
        return self._volumes.names()

    def digests(self) -> list[str]:
        """Returns the digests that the data set had when this cache was made."""
        return self._digests

    def reference(self, index: int) -> nib.Nifti1Image:
        """Returns the reference of the data set."""
        return self._volumes.reference(index)

    def _key(self, digest: str) -> str:
        settings = [VERSION, type(self._volumes).__name__, self.size, self.layout.name, digest]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"

    def _read(self, index: int) -> tuple[Tensor, Tensor] | None:
        """Maps an item's image and int8 mask; None if its file is missing, torn, altered or another item's."""
        path, key = self._path(self._keys[index]), self._keys[index]
        try:
            check_kind(path)
            with safe_open(path, framework="pt") as file:
                known = file.metadata() or {}
                image, mask = file.get_tensor("image"), file.get_tensor("mask")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadInput(
                path, f"cannot be read ({error.strerror or error})", "remove it, or repair the disk"
            ) from None
        except SafetensorError:
            return None
        if known.get("key") != key or (image.dtype, mask.dtype) != (torch.float32, torch.int8):
            return None
        if index not in self._sound:
            if known.get("checksum") != _checksum(image, mask):
                return None
            self._sound.add(index)
        return image, mask

    def _remake(self, index: int) -> tuple[Tensor, Tensor]:
        path, key = self._path(self._keys[index]), self._keys[index]
        if path.exists():
            log.warning(f"{path}: it is damaged or another item's; prepared anew")
        image, values = self._volumes[index]
        image, mask = image.contiguous(), values.to(torch.int8).contiguous()
        content = save({"image": image, "mask": mask}, {"key": key, "checksum": _checksum(image, mask)})
        try:
            with replacing(path) as temporary:
                temporary.write_bytes(content)
        except BadInput as error:
            full = "room" in error.problem
            raise BadInput(self.folder, error.problem, REMEDY if full else "give --cache another folder") from None
        return image, mask

    def _forget_abandoned(self) -> None:
        for torn in self.folder.glob("*/.writing-*"):
            with contextlib.suppress(OSError):
                if time.time() - torn.stat().st_mtime > ABANDONED:
                    torn.unlink()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the folder's lock, so that no other process of this machine prepares in it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            check_kind(self.folder / ".lock")
            lock = open(self.folder / ".lock", "a")  # noqa: SIM115
        except OSError as error:
            problem = (error.strerror or "it cannot be written").lower()
            raise BadInput(self.folder, problem, "give --cache a folder that can be written") from None
        with lock:
            with contextlib.suppress(
                OSError
            ):  # a file system without locks: both prepare, and either's files are whole
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                yield
            finally:
                # Closing is not enough: the loading processes that began in here hold the file open too, and live on
                # as long as an error's traceback does.
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_UN)


class _Remaking(Dataset[int]):
    """A data set that prepares and writes an item of a cache when it is read, and returns only the item's place."""

    def __init__(self, cache: DiskCache, missing: list[int]) -> None:
        self._cache, self._missing = cache, missing

    def __len__(self) -> int:
        return len(self._missing)

    def __getitem__(self, place: int) -> int:
        self._cache._remake(self._missing[place])
        return place


def _checksum(*tensors: Tensor) -> str:
    checksum = 0
    for tensor in tensors:
        checksum = zlib.crc32(tensor.numpy().data, checksum)
    return f"{checksum:08x}"
