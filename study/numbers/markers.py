"""Writes into Markdown pages the numbers that the records give, each between its two markers.

`<!--=bench.step_ms(H100, med-ddpm, FAST)-->41.4<!--=-->` stands inside a sentence, a table's cell or **bold** text. A
function that returns rows has its markers on lines of their own, above a table's header and below its last row; the
header stays as it is.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from medddpm.errors import BadInput
from medddpm.runtime.files import replacing
from study.numbers import ages

PAGES = ("README.md", "site/*.md", "notebooks/00_summary.ipynb", "notebooks/24_all_verdicts.ipynb")
TOPICS = (
    "ages", "artifact", "bench", "brains", "claims", "networks", "others", "profiles", "quality", "readings",
    "smallest_step", "starts",
)  # fmt: skip

_MARKER = re.compile(r"<!--=(.*?)(-->|$)", re.MULTILINE)
_CALL = re.compile(r"(\w+)\.([a-z]\w*)\((.*)\)")
# Markdown takes a line that begins with a comment for HTML, with all that stands on it; in a list's item too.
_BEGINS_A_LINE = re.compile(r'^[ \t>"]*(?:[-*+] |\d+[.)] )?$')


def pages(root: Path) -> list[Path]:
    """Returns the files that may hold markers."""
    return sorted(path for pattern in PAGES for path in root.glob(pattern))


def write_pages(root: Path) -> list[Path]:
    """Writes the numbers of every page; returns the pages that changed.

    Raises:
        BadInput: a marker is unknown or has no end, or the records lack its number. No page is written then.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in pages(root)}
    newest = {path: ages.advanced(root, text) for path, text in texts.items()}
    written = {path: generated(root, text, path.relative_to(root)) for path, text in newest.items()}
    changed = [path for path in texts if written[path] != texts[path]]
    for path in changed:
        with replacing(path) as temporary:
            temporary.write_text(written[path], encoding="utf-8")
    return changed


def generated(root: Path, text: str, name: Path) -> str:
    """Returns a page's text with the numbers that the records give.

    What differs from the page's text in its line breaks only stays as it is wrapped there.

    Args:
        root: the repository.
        text: the page.
        name: the page's path, for errors.

    Raises:
        BadInput: a marker is unknown, begins a line or has no end, or the records lack its number.
    """
    parts, end = [], 0
    markers = _MARKER.finditer(text)
    for opening in markers:
        where = f"{name}:{text.count(chr(10), 0, opening.start()) + 1}"
        closing = next(markers, None)
        if not opening[1]:
            raise BadInput(where, "a marker's end without its beginning", "write <!--=NAME--> before the number")
        if not opening[2] or closing is None or closing[1] or not closing[2]:
            raise BadInput(where, f"the marker {opening[1]} has no end", "write <!--=--> after the number")
        number = _called(root, opening[1], where)
        between = text[opening.end() : closing.start()]
        if number is None:  # cannot be told here, and stays
            number = between
        elif isinstance(number, list):
            number = _table(between, number, where)
        else:
            for marker in (opening, closing):
                if _BEGINS_A_LINE.match(text[text.rfind("\n", 0, marker.start()) + 1 : marker.start()]):
                    raise BadInput(where, "a marker begins a line", "move the word before it to that line")
        parts += [text[end : opening.end()], between if between.split() == number.split() else number]
        end = closing.start()
    return "".join([*parts, text[end:]])


def _called(root: Path, call: str, where: str) -> str | list[str] | None:
    """Calls a marker's function with the marker's arguments."""
    function, arguments = _function(call)
    if function is None:
        raise BadInput(where, f"no function of study/numbers: {call}", "name one as TOPIC.FUNCTION(ARGUMENT, …)")
    try:
        inspect.signature(function).bind(root, *arguments)
    except TypeError as error:
        raise BadInput(where, f"{call}: {error}", "see the function's arguments in study/numbers") from None
    try:
        number = function(root, *arguments)
    except BadInput as error:
        raise BadInput(where, f"{call}: {error.path}: {error.problem}", error.remedy) from error
    except (LookupError, ValueError) as error:
        raise BadInput(where, f"{call}: not in the records ({error})", "change the arguments or the record") from error
    if number is None:
        return None
    if not number or re.search(r"\bnan\b", " ".join(number) if isinstance(number, list) else number):
        raise BadInput(where, f"{call}: was not measured", "change the arguments or the record")
    return number


def _function(call: str) -> tuple[Callable[..., str | list[str] | None] | None, list[str]]:
    """Returns the function that a marker names, or None, and the marker's arguments."""
    named = _CALL.fullmatch(call)
    if named is None or named[1] not in TOPICS:
        return None, []
    module = importlib.import_module(f"study.numbers.{named[1]}")
    function = vars(module).get(named[2])
    if not inspect.isfunction(function) or function.__module__ != module.__name__:
        return None, []
    return function, [argument.strip() for argument in named[3].split(",") if argument.strip()]


def _table(between: str, rows: list[str], where: str) -> str:
    """Returns the header that stands between two markers, with other rows."""
    lines = between.strip("\n").splitlines()
    if len(lines) < 2 or not between.startswith("\n") or not re.fullmatch(r"[|: -]+", lines[1]):
        raise BadInput(where, "no table between the markers", "put the markers on lines around one with its header")
    cells = {line.count("|") - line.count(r"\|") for line in rows}
    if cells != {lines[0].count("|")}:
        problem = f"rows of {' or '.join(str(number - 1) for number in sorted(cells))} cells under another header"
        raise BadInput(where, problem, "give the header as many")
    return "\n".join(["", *lines[:2], *rows, ""])
