"""What a checkpoint's archive claims, checked before PyTorch reads it: nothing torn, nothing inflated, no code.

`torch.save` writes a zip of one pickle, which builds the tensors, and one record a storage. `torch.load` checks neither
the records' checksums nor that a storage is as long as the pickle says.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

from medddpm.errors import BadInput

BEFORE_1_6 = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the number that such a file begins with, pickled
LARGEST_PICKLE = 2**26  # bytes; that of a U-Net of a thousand tensors with its optimizer has a quarter of a megabyte
WIDTHS = {"DoubleStorage": 8, "LongStorage": 8, "ComplexFloatStorage": 8, "FloatStorage": 4, "IntStorage": 4,
          "HalfStorage": 2, "BFloat16Storage": 2, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1,
          "BoolStorage": 1}  # fmt: skip
_PASSED = {("collections", "OrderedDict"): OrderedDict}


class _Foreign(Exception):
    """The pickle asks for something that builds no tensor."""


class _Storage:
    """A storage of the archive, by what the pickle claims of it."""

    def __init__(self, key: str, width: int, length: int) -> None:
        self.key, self.bytes, self.length = key, width * length, length


class _Claims(pickle.Unpickler):
    """Reads the pickle without building a tensor; what it may name is listed here, and none of it runs."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: list[_Storage] = []

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PASSED:
            return _PASSED[module, name]
        if module in ("torch", "torch.storage") and (name in WIDTHS or name == "UntypedStorage"):
            return name
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
            return _fits if name == "_rebuild_tensor_v2" else (lambda data, *_: data)
        raise _Foreign(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, key, _device, length = pid
        if kind != "storage" or not isinstance(storage, str) or type(length) is not int or length < 0:
            raise ValueError
        self.storages.append(_Storage(str(key), WIDTHS.get(storage, 1), length))
        return self.storages[-1]


def _fits(storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object) -> None:
    """Refuses a tensor that reaches beyond its storage, or that is many times as large (an expanded one)."""
    whole = all(type(n) is int and n >= 0 for n in (offset, *size, *stride)) and len(size) == len(stride) <= 16
    if not whole or math.prod(size) > max(storage.length, 1):
        raise ValueError
    if math.prod(size) and offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) >= storage.length:
        raise ValueError


def check_archive(path: Path) -> None:
    """Checks that a file is a whole archive of `torch.save`, of tensors alone and no larger in memory than on disk.

    Raises:
        BadInput: it is not; says which.
    """
    with open(path, "rb") as stream:
        old = stream.read(len(BEFORE_1_6)) == BEFORE_1_6
    if old:
        raise BadInput(
            path,
            "it is in PyTorch's format of before 1.6, which has no checksums",
            "have its author save it anew: torch.save(torch.load(OLD, weights_only=True), NEW)",
        )
    try:
        with zipfile.ZipFile(path) as archive:
            _check(archive, path)
    except _Foreign as error:
        raise BadInput(
            path,
            f"it carries code beside its tensors ({error}), which loading would run",
            "have its author save tensors only: torch.save({'step': …, 'model': model.state_dict(), 'ema': …})",
        ) from None
    except BadInput:
        raise
    except Exception:  # zipfile and pickle raise a dozen kinds, by where a broken file stops making sense
        raise damaged(path) from None


def damaged(path: Path) -> BadInput:
    """The error for a file that is not a whole checkpoint."""
    return BadInput(path, "it is damaged, or no PyTorch checkpoint", "fetch it again, or use an earlier one")


def _check(archive: zipfile.ZipFile, path: Path) -> None:
    records = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    pickled = records["data.pkl"]
    if len(records) != len(archive.infolist()) or any(i.compress_type != zipfile.ZIP_STORED for i in records.values()):
        raise damaged(path)  # PyTorch stores; what is packed could unpack to anything
    if pickled.file_size > LARGEST_PICKLE or archive.testzip() is not None:
        raise damaged(path)
    with archive.open(pickled) as stream:
        claims = _Claims(stream)
        claims.load()
    for storage in claims.storages:
        if records[f"data/{storage.key}"].file_size != storage.bytes:
            raise damaged(path)
