"""How a good file is broken: at a byte, at a word of text, or at a value of what it holds.

Every mutant is drawn by hypothesis, so that a failure shrinks and a seed gives the same mutants each time.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

BYTES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff" * 8, b"\x00" * 8,
         b"\xff\xff\xff\x7f", b"\xff" * 7 + b"\x7f", b"\x1f\x8b", b"\r\n", b"\x1b[2J")  # fmt: skip
WORDS = ("", "0", "-1", "1e400", "nan", "-inf", "9" * 400, "1,0", "null", "true", '"', "{}", "[]", "[" * 5000, "\x00",
         "\x1b[31m", "\u202e", "ü" * 300, " ", "0x10", "1_000", "5.", "é", "\ud800")  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 5, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), 1e308, "", "x", "0", b"b", [], [0],
    [-1, 2, 3], {}, {"a": {}}, [[]], (1, 2), "\x1b[31m", "9" * 5000,
)  # fmt: skip


@st.composite
def broken_bytes(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of `seeds` with one to four of: a bit flipped, bytes overwritten, put in, repeated, cut out."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        if not content:
            break
        at = draw(st.integers(0, len(content) - 1))
        near = draw(st.booleans())  # most of what is read first stands at either end
        at = min(at % 600, len(content) - 1) if near else at
        match draw(st.sampled_from(("flip", "write", "insert", "repeat", "remove", "cut", "splice"))):
            case "flip":
                flipped = content[at] ^ (1 << draw(st.integers(0, 7)))
                content = content[:at] + bytes([flipped]) + content[at + 1 :]
            case "write":
                word = draw(st.sampled_from(BYTES))
                content = content[:at] + word + content[at + len(word) :]
            case "insert":
                content = content[:at] + draw(st.sampled_from(BYTES)) + content[at:]
            case "repeat":
                length = draw(st.integers(1, 64))
                content = content[: at + length] + content[at:]
            case "remove":
                content = content[:at] + content[at + draw(st.integers(1, 64)) :]
            case "cut":
                content = content[:at]
            case "splice":
                other = draw(st.sampled_from(seeds))
                content = content[:at] + other[at:]
    return content


@st.composite
def broken_text(draw: st.DrawFn, seeds: Sequence[str]) -> bytes:
    """One of `seeds` with one to three of its words (numbers, names, punctuation) replaced, doubled or left out."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 3))):
        words = list(re.finditer(r"[\w.+-]+|[^\w\s]|\n", content))
        if not words:
            break
        word = words[draw(st.integers(0, len(words) - 1))]
        new = draw(st.sampled_from((*WORDS, word.group() * 2, word.group() + "\n")))
        content = content[: word.start()] + new + content[word.end() :]
    return content.encode("utf-8", "surrogatepass")


PRINTED = ("step 2 loss 0.5\n", "loss: 0.1, lr: 1e-4\n", '{"step":"2"}\n', " 10%|#  | 1/9\r", '"', "Killed", "\n", "x",
           "==PROF== 50%\n", "==WARNING== No kernels were profiled.\n", '"7","8","9"\n', '"1","\n')  # fmt: skip


@st.composite
def broken_lines(draw: st.DrawFn, seed: str) -> bytes:
    """`seed` with one to four of: a line of a program's put in, a line cut short, left out, doubled or moved."""
    lines = seed.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(("print", "print", "head", "tail", "remove", "double", "move"))):
            case "print":
                lines.insert(at, draw(st.sampled_from(PRINTED)))
            case "head":
                lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))] + "\n"
            case "tail":
                lines[at] = lines[at][draw(st.integers(0, len(lines[at]))) :]
            case "remove" if len(lines) > 1:
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
    return "".join(lines).encode()


@st.composite
def broken_value(draw: st.DrawFn, seed: Mapping[str, Any]) -> Any:
    """`seed` with one to three of its values, at any depth, replaced, renamed or left out."""
    content = copy.deepcopy(dict(seed))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = content, draw(st.sampled_from(sorted(content, key=str) or [""]))
        while isinstance(holder.get(key), dict) and holder[key] and draw(st.booleans()):
            holder = holder[key]
            key = draw(st.sampled_from(sorted(holder, key=str)))
        match draw(st.sampled_from(("replace", "remove", "rename"))):
            case "replace":
                old = holder.get(key)
                new = draw(tensors(old) if isinstance(old, torch.Tensor) else st.sampled_from(VALUES))
                holder[key] = new if isinstance(new, torch.Tensor) else copy.deepcopy(new)  # the next one may change it
            case "remove":
                holder.pop(key, None)
            case "rename" if key in holder:
                holder[draw(st.sampled_from(("", "x", "config", "ema", str(key) + "é")))] = holder.pop(key)
    return content


def tensors(old: torch.Tensor) -> st.SearchStrategy[Any]:
    """What may stand where a tensor stood: no tensor, or one of another shape, dtype, stride or content."""
    small = old.flatten()[:1] if old.numel() else torch.zeros(1)
    return st.sampled_from(
        [
            *VALUES[:8],
            torch.tensor(1.0),
            torch.zeros(0),
            torch.zeros(3, 0, 5),
            old.double() if old.is_floating_point() else old.float(),
            old.flatten(),
            torch.full_like(old, float("nan")) if old.is_floating_point() else old,
            small.expand(10**7),  # few bytes in the file, many in memory
            small.reshape(1, 1, 1).expand(10**4, 10**4, 10),
            torch.zeros(2, 2, dtype=torch.complex64),
            torch.zeros(2, dtype=torch.bool),
        ]
    )


OPCODES = (
    b"}", b"]", b")", b"(", b"N", b"\x88", b"K\x05", b"J\xff\xff\xff\x7f", b"\x8a\x09" + b"\xff" * 8 + b"\x7f",
    b"X\x01\x00\x00\x00a", b"X\xff\xff\xff\xff", b"q\x00", b"q\x01", b"r\xff\xff\xff\x3f", b"p999999999\n", b"\x94",
    b"h\x00", b"h\x01", b"a", b"e", b"s", b"u", b"\x85", b"\x86", b"\x87", b"t", b"l", b"d", b"R", b"b", b"Q", b"2",
    b"0", b"1", b"\x81", b"\x96\x00\x00\x00\x00\x02\x00\x00\x00", b"\x8b\xff\xff\xff\x7f",
    b"ccollections\nOrderedDict\n",
    b"ccollections\nCounter\n", b"c__builtin__\nset\n", b"c__builtin__\nbytearray\n", b"c_codecs\nencode\n",
    b"ctorch\nSize\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n", b"cos\nsystem\n", b".",
)  # fmt: skip


@st.composite
def pickles(draw: st.DrawFn) -> bytes:
    """A pickle of opcodes in any order, some of them a hundred thousand times."""
    counts = st.sampled_from((1, 1, 1, 1, 2, 9, 1000, 100_000))
    loops = st.tuples(st.lists(st.sampled_from(OPCODES), min_size=1, max_size=4).map(b"".join), counts)
    parts = draw(st.lists(st.one_of(st.sampled_from(OPCODES), loops.map(lambda loop: loop[0] * loop[1])), max_size=12))
    return b"\x80\x02}" + b"".join(parts)[: 2**21] + b"."
