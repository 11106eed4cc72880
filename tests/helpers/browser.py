"""Headless Chromium for tests of pages; a test that asks for it is long, and skipped where there is none."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Nothing is asked for beyond the page, and no sandbox of Chromium's own, which root in a container cannot have.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


def needs_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test as long, and as one to skip where there is no Chromium."""
    missing = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install the package chromium")
    return pytest.mark.long(missing(test))


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium, by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which `folder` is served on this machine."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""
