"""Measures the book on a lent machine: as far as its time allows, from where another machine left off."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from medddpm.measure.lease import UNTIL, LeftForLater, time_left
from medddpm.measure.machine import gpu_folder_name
from study.book import LAST, Book, Notebook, chosen, read_chain
from study.carried import folders_of, pack, take
from study.records.packing import check_name


def measure_book(
    root: Path,
    *,
    only: str | None = None,
    start: str | None = None,
    minutes: float = math.inf,
    packed: Path | None = None,
    results: Sequence[Path] = (),
) -> int:
    """Runs the notebooks that measure and have not measured all, in chain order, until one lacks time.

    What reads records alone is drawn later, by `run_book`. A notebook that lacks time ends the call: later ones may
    read what it measures. Rows name the host and the card that measured them.

    Args:
        root: the repository, at the commit of the results.
        only, start: as for `study.book.run_book`.
        minutes: that this call has; nothing begins that would end later.
        packed: NAME.tar, of `carried.pack`; written after each notebook.
        results: of earlier calls, as `carried.take` reads them.

    Returns:
        0. What is lacking is printed, and the next call goes on there.

    Raises:
        BadInput: results cannot be read, or a notebook failed; what was measured before is packed.
    """
    root = root.resolve()
    if packed is not None:
        check_name(packed)
    with _lease(60 * minutes):
        for source in results:
            print(f"{source}: {take(source, root)} files taken", flush=True)
        chain = _measuring(chosen(root, only, start, measure=True))
        book, card = Book(root, measure=True, refresh=False), _card()
        try:
            for place, notebook in enumerate(chain, 1):
                label = f"[{place}/{len(chain)}]"
                if book.has_measured(notebook, card):
                    print(f"{label} {notebook.name}: measured already", flush=True)
                    continue
                if not time_left():
                    break
                book.bring_up_to_date(notebook, True, label)
                book.mark_measured(notebook, card)
                _pack(book, packed, card)
        except LeftForLater as error:
            print(error, flush=True)
        finally:
            _pack(book, packed, card)
    whole = [notebook.name for notebook in chain if book.has_measured(notebook, card)]
    lacking = ", ".join(notebook.name for notebook in chain if notebook.name not in whole)
    print(f"{len(whole)} of {len(chain)} notebooks have measured all{f'; lacking: {lacking}' if lacking else ''}")
    return 0


def _measuring(chain: Sequence[Notebook]) -> list[Notebook]:
    """Returns the notebooks that leave records of a card: the essay and the audit, the last, only read them."""
    return [notebook for notebook in chain if notebook.measures and not notebook.name.startswith(LAST)]


def _pack(book: Book, packed: Path | None, card: str) -> None:
    if packed is not None:
        measuring = _measuring(read_chain(book.root))
        measured = [notebook.name for notebook in measuring if book.has_measured(notebook, card)]
        pack(book.root, folders_of([(notebook.name, notebook.inputs) for notebook in measuring], measured), packed)


@contextlib.contextmanager
def _lease(seconds: float) -> Iterator[None]:
    """Inside, measuring processes have so many seconds."""
    before = os.environ.get(UNTIL)
    if not math.isinf(seconds):
        os.environ[UNTIL] = str(time.time() + seconds)
    try:
        yield
    finally:
        os.environ.pop(UNTIL, None)
        if before is not None:
            os.environ[UNTIL] = before


def _card() -> str:
    """Returns the records folder of this machine's card: "H200"; "cpu" without one."""
    import torch

    return gpu_folder_name(torch.cuda.get_device_name()) if torch.cuda.is_available() else "cpu"
