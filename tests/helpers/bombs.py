"""Small files that claim to be large: pickles and archives that a checkpoint's reader is to refuse."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

PROTOCOL = b"\x80\x02"
ORDERED = b"ccollections\nOrderedDict\n"


def archive(pickled: bytes, records: Mapping[str, bytes] | None = None) -> bytes:
    """An archive as `torch.save` writes it, of any pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as made:
        for name, content in {"data.pkl": pickled, "version": b"3\n", **(records or {})}.items():
            made.writestr(f"a/{name}", content)
    return stream.getvalue()


def memo(index: int) -> bytes:
    """A dict that is memorized under a number: the interpreter's own unpickler makes room for all numbers below it."""
    return PROTOCOL + b"}r" + struct.pack("<I", index) + b"."


def copies(pairs: int, times: int) -> bytes:
    """A list of pairs, of which tables are made again and again."""
    listed = b"]q\x01(" + b"".join(b"J" + struct.pack("<i", i) + b"N\x86" for i in range(pairs)) + b"e"
    return PROTOCOL + b"](" + ORDERED + b"q\x00" + listed + b"h\x00h\x01\x85R" * times + b"e."


def mentions(levels: int) -> bytes:
    """Lists of ten times the list before, whose last has ten to the power of `levels` members."""
    made = b"".join(
        b"](" + b"h" + bytes([level]) + b"h%c" % level * 9 + b"eq" + bytes([level + 1]) for level in range(levels)
    )
    return PROTOCOL + b"]q\x00" + made + b"."


def nested_tuples(depth: int) -> bytes:
    """A key of a table that is a tuple in a tuple in a tuple: to hash it takes the whole of the C stack."""
    return PROTOCOL + b"})" + b"\x85" * depth + b"Ns."


def text_copies(length: int, times: int) -> bytes:
    """A text that is encoded again and again."""
    text = b"X" + struct.pack("<I", length) + b"a" * length + b"q\x01"
    encoded = b"h\x02h\x01X\x06\x00\x00\x00latin1\x86R"
    return PROTOCOL + b"c_codecs\nencode\nq\x02" + text + b"](" + encoded * times + b"e."


def grown_later(times: int) -> bytes:
    """A list that is mentioned while it is empty, and filled afterwards."""
    return PROTOCOL + b"]q\x00](" + b"h\x00" * times + b"eh\x00(" + b"N" * times + b"e."


def length_of_a_bytearray() -> bytes:
    """A bytearray of 8 GiB, which its length alone makes."""
    return PROTOCOL + b"c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x02\x85R."


def nested_records(count: int, size: int) -> bytes:
    """An archive of `count` storages, each of which lies in the one before: together `count` times as large as it."""
    names = [f"a/data/{index}".encode() for index in range(count)]
    heads = [30 + len(name) for name in names]
    sizes = [sum(heads[index + 1 :]) + size for index in range(count)]
    tensors = {str(index): torch.empty(length, dtype=torch.uint8) for index, length in enumerate(sizes)}
    stream = io.BytesIO()
    torch.save({"model": tensors}, stream)
    with zipfile.ZipFile(stream) as whole:
        plain = archive(whole.read("archive/data.pkl"))
    begin, end = struct.unpack("<L", plain[-6:-2])[0], plain[-22:]
    body, places = bytes(size), []
    for name, length in reversed([*zip(names, sizes, strict=True)]):
        record = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, zlib.crc32(body), length, length, len(name), 0)
        places.append((name, struct.pack("<L2L", zlib.crc32(body), length, length), len(record + name + body)))
        body = record + name + body
    entries = b"".join(
        struct.pack("<4s6H", b"PK\1\2", 20, 20, 0, 0, 0, 0)
        + sizes_
        + struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0, begin + len(body) - back)
        + name
        for name, sizes_, back in places
    )
    directory = plain[begin:-22] + entries
    number = struct.unpack("<H", end[8:10])[0] + count
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number, number, len(directory), begin + len(body), 0)
    return plain[:begin] + body + directory + tail


def views(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A checkpoint of these shapes whose tensors all lie in the storage of the largest."""
    largest = torch.zeros(max(tensor.numel() for tensor in state.values()))
    inside = {name: largest[: tensor.numel()].view(tensor.shape) for name, tensor in state.items()}
    return {"step": 1, "model": inside, "ema": inside}


PICKLES = {
    "memo": memo(2**28),
    "copies": copies(10_000, 5_000),
    "mentions": mentions(30),
    "nested tuples": nested_tuples(250_000),
    "text copies": text_copies(2**20, 20_000),
    "grown later": grown_later(1000),
    "bytearray": length_of_a_bytearray(),
}
"""By what they do."""


def write_hollow(whole: bytes, path: Path, hole: int) -> None:
    """Writes a file that has a hole of `hole` bytes before its last."""
    with open(path, "wb") as stream:
        stream.write(whole[:-1])
        stream.seek(hole, io.SEEK_CUR)
        stream.write(whole[-1:])
